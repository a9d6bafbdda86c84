#!/bin/sh
# uv as code in a sandbox calls it. Where no index can be reached it fails at once, not after its retries,
# and says what to do.
if [ -n "$UV_DEFAULT_INDEX$HTTP_PROXY$http_proxy$HTTPS_PROXY$https_proxy" ]; then
    exec /opt/sandcell/bin/uv "$@"
fi
UV_OFFLINE=1 /opt/sandcell/bin/uv "$@" && exit
status=$?
case " $* " in
*" install "* | *" add "* | *" sync "* | *" lock "* | *" compile "* | *" run "*) cat /opt/sandcell/no-index.txt >&2 ;;
esac
exit $status
