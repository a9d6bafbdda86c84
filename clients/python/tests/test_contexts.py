import urllib.request

import pytest

from sandcell import InstallFailed, NotFound


def test_contexts_are_made_restarted_and_deleted(sandbox):
    context = sandbox.contexts.create("second", env={"A": "1"})
    assert [one.id for one in sandbox.contexts.list()] == ["default", context.id]
    sandbox.run_code("x = 1", context=context)
    assert sandbox.contexts.restart(context).execution_count == 0
    assert sandbox.run_code("x", context=context).error.name == "NameError"
    sandbox.contexts.delete(context)
    with pytest.raises(NotFound):
        sandbox.run_code("1", context=context)


def test_variables_are_kept_forked_and_restored(sandbox):
    sandbox.run_code("x = 1")
    kept = sandbox.checkpoint(name="one")
    assert [one.id for one in sandbox.checkpoints()] == [kept.id]
    sandbox.run_code("x = 2")
    old = sandbox.fork(checkpoint=kept, name="old")
    new = sandbox.fork()
    assert [sandbox.run_code("x", context=context).text for context in (old, new)] == ["1", "2"]
    assert sandbox.restore(kept).id == "default"
    assert sandbox.run_code("x").text == "1"
    assert sandbox.restore(kept.id, context=new).id == new.id
    sandbox.delete_checkpoint(kept)
    assert sandbox.checkpoints() == []


def test_what_a_fork_cannot_carry_is_named(sandbox):
    sandbox.run_code(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), name='t1').start()"
    )
    assert any("t1" in one for one in sandbox.fork().not_carried)


def test_packages_are_installed_and_told_of(sandbox):
    result = sandbox.install("six", timeout=200).raise_for_error()
    assert (result.status, result.packages[0].name) == ("installed", "six")
    [six, numpy, nothing] = sandbox.packages("six", "numpy", "no-such-thing-here")
    assert (six.status, numpy.status, nothing.status) == ("installed", "installed", "not_installed")
    assert sandbox.run_code("import six; six.__name__").text == "'six'"
    failed = sandbox.install("six==0.0.0.1")
    assert not failed.success
    with pytest.raises(InstallFailed):
        failed.raise_for_error()


def test_the_network_is_set(sandbox):
    assert sandbox.network().policy == "none"
    policy = {"allow": ["example.com"], "packages": True}
    assert sandbox.set_network(policy).policy == policy
    assert sandbox.set_network(False).policy == "none"


def test_servers_inside_are_reached(sandbox):
    sandbox.files.write("page.txt", "from inside")
    server = sandbox.commands.start("python3 -u -m http.server 8080")
    next(server.output())
    [port] = sandbox.ports()
    assert (port.port, port.url) == (8080, f"/sandbox/{sandbox.id}/port/8080/")
    with urllib.request.urlopen(sandbox.port_url(8080, "/page.txt")) as answer:
        assert answer.read() == b"from inside"
    assert sandbox.browser_url(8080).partition("//")[2].startswith(port.host)


def test_mirrors_are_listed(client):
    [base] = [mirror for mirror in client.mirrors.list() if mirror.base is None]
    assert base.status == "ready"
    assert client.mirrors.get(base.id) == base
    with pytest.raises(NotFound):
        client.mirrors.delete("no-such-mirror")


def test_the_service_is_healthy(client):
    assert client.health() == "healthy"
