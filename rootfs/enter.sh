# Runs a command of the recipe inside the tree that is being built.
#
#   sh enter.sh network|isolated ROOT INPUTS COMMAND...
#
# The caller has put this into mount and PID namespaces of its own, so none of these mounts is ever
# seen by the host, and all of them end with the last process. INPUTS appears on /tmp/recipe, read-only.
set -eu
network=$1
root=$2
inputs=$3
shift 3

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o nosuid,mode=0755 tmpfs "$root/dev"
for node in null zero full random urandom; do
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs "$root/tmp"
mkdir "$root/tmp/recipe"
mount --bind "$inputs" "$root/tmp/recipe"
mount -o remount,bind,ro "$root/tmp/recipe"

# Names resolve as they do on the host, without a trace of it in the tree. Read-only: a later step
# that writes these files must not reach the host's.
if [ "$network" = network ]; then
    for file in resolv.conf hosts; do
        rm -f "$root/etc/$file"
        : >"$root/etc/$file"
        if [ -e "/etc/$file" ]; then
            mount --bind "/etc/$file" "$root/etc/$file"
            mount -o remount,bind,ro "$root/etc/$file"
        fi
    done
fi

cd "$root"
exec chroot "$root" "$@"
