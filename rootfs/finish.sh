# Gives the tree its names and files, and removes what only an installation or a human needs.
# Runs last, so that nothing that an earlier step wrote by the way is left.
set -eu

# The home directory is only the point where each sandbox puts its own.
printf 'user:*:1000:1000:user:/home/user:/bin/bash\n' >>/etc/passwd
printf 'user:*:1000:\n' >>/etc/group
mkdir -p /home/user /app
ln -s /home/user /app/results

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

rm -rf /etc/apt /etc/dpkg/dpkg.cfg.d /etc/cron.daily /etc/systemd /usr/lib/systemd \
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
ln -s /opt/sandcell/bin/uv /opt/venv/bin/uv
