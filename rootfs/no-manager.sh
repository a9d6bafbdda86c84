#!/bin/sh
# Stands for apt and conda, which are not in a sandbox.
echo "${0##*/}: not in this sandbox, whose system cannot be changed. Python packages: pip install, where the sandbox may reach the index, or from outside REST POST /sandbox/{id}/install, MCP tool install_packages_in_sandbox." >&2
exit 1
