# Gives the tree its names and files, and removes what only an installation or a human needs.
# Runs last, so that nothing that an earlier step wrote by the way is left.
set -eu

# The home directory is only the point where each sandbox puts its own.
printf 'user:*:1000:1000:user:/home/user:/bin/bash\n' >>/etc/passwd
printf 'user:*:1000:\n' >>/etc/group
mkdir -p /home/user /app /mnt
# The working directory by the names that other services give it: code is generated with them.
for name in /app/results /mnt/data /workspace /content; do
    ln -s /home/user "$name"
done

rm -f /etc/hosts /etc/hostname /etc/resolv.conf /etc/machine-id /etc/fstab
printf '127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n' >/etc/hosts
: >/etc/resolv.conf
: >/etc/machine-id
printf 'sandbox\n' >/etc/hostname
printf 'LANG=C.UTF-8\n' >/etc/default/locale
printf 'Etc/UTC\n' >/etc/timezone
ln -sf /usr/share/zoneinfo/Etc/UTC /etc/localtime
# A login shell starts from the PATH of /etc/profile.
printf 'PATH=/opt/venv/bin:$PATH\n' >/etc/profile.d/sandcell.sh

# Numbers and dates as en_US writes them, for those who ask; C.UTF-8 stays what everything starts with.
localedef --no-archive -i en_US -f UTF-8 en_US.UTF-8

# imageio's ffmpeg is one static file, good for everyone who calls ffmpeg.
ln -s /opt/venv/lib/python3.13/site-packages/imageio_ffmpeg/binaries/ffmpeg-linux-x86_64-* /usr/local/bin/ffmpeg

rm -rf /usr/share/i18n /etc/apt /etc/dpkg/dpkg.cfg.d /etc/cron.daily /etc/systemd /usr/lib/systemd \
    /usr/share/info /usr/share/lintian /usr/share/gitweb /usr/share/doc-base /usr/share/bug \
    /opt/venv/share/jupyter /var/lib/apt /var/lib/systemd /boot /media /srv
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid- \
    /etc/.pwd.lock /opt/venv/.lock /var/lib/dpkg/*-old /var/lib/dpkg/lock \
    /var/lib/dpkg/lock-frontend /var/lib/dpkg/triggers/Lock
find /var/cache /var/log /var/backups /var/mail /var/spool /root /run -mindepth 1 -delete
mkdir /run/lock

# The installer's own, which user code cannot replace as it can everything in /opt/venv.
mkdir -p /opt/sandcell/bin
mv /opt/venv/bin/uv /opt/sandcell/bin/uv
install -m 755 /tmp/recipe/uv.sh /opt/venv/bin/uv

# What there is instead of package managers that are not here.
install -m 644 /tmp/recipe/no-index.txt /opt/sandcell/no-index.txt
install -m 755 /tmp/recipe/no-manager.sh /opt/sandcell/bin/no-manager
for name in apt apt-get conda mamba; do
    ln -s /opt/sandcell/bin/no-manager "/usr/local/bin/$name"
done
