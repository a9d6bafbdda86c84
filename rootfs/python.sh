# Installs the locked Python packages into /opt/venv. Inputs on /tmp/recipe: requirements.txt, uv.txt (its
# lines for uv itself), ca.pem, patch.py. The index comes from the environment.
set -eu

cp /tmp/recipe/ca.pem /etc/ssl/certs/ca-certificates.crt

# pip runs from Debian's own wheel, once, to fetch uv by its locked hash; uv then fetches the rest
# several times faster than pip would.
pip_wheel=$(echo /usr/share/python-wheels/pip-*.whl)
python3 "$pip_wheel/pip" --quiet --disable-pip-version-check --no-cache-dir --no-input \
    install --root-user-action ignore --no-deps --require-hashes --only-binary :all: --target /tmp/uv -r /tmp/recipe/uv.txt

python3 -m venv --without-pip /opt/venv
# The lock is complete; overrides.txt is about a dependency that its metadata still names.
VIRTUAL_ENV=/opt/venv /tmp/uv/bin/uv pip install --no-build --no-deps --require-hashes --no-cache \
    --link-mode copy -r /tmp/recipe/requirements.txt

cd /opt/venv/lib/python3.13/site-packages

# Debian's bundle, merged with the host's, is the only one: requests and httpx read certifi's.
ln -sf /etc/ssl/certs/ca-certificates.crt certifi/cacert.pem

# The packages' own test suites: a sixth of the tree, and nothing imports them.
for package in bokeh joblib matplotlib mpl_toolkits mpmath networkx numba numpy pandas pyarrow scipy sklearn \
    statsmodels sympy tornado; do
    find "$package" -depth -type d \( -name tests -o -name test \) \
        ! -path sklearn/datasets/tests ! -path 'sympy/testing*' -exec rm -rf {} +
done
# Headers and static libraries for compilers, which are here only where the operator asks for them.
if [ ! -e /usr/bin/gcc ]; then
    rm -rf pyarrow/include pyarrow/includes pyarrow/src
    find /opt/venv /usr/lib -name '*.a' -type f -delete
fi

/opt/venv/bin/python /tmp/recipe/patch.py
