import asyncio
import time

import pytest

import sandcell
from sandcell import AsyncClient, AsyncSandbox, CodeError, NotFound


def test_code_runs_and_callbacks_are_awaited_in_order(run):
    async def body(sandbox):
        told = []

        async def slow(text):
            await asyncio.sleep(0.05)
            told.append(text)

        execution = await sandbox.run_code(
            "for n in range(3): print(n, flush=True)\n7", on_stdout=slow, on_result=told.append
        )
        assert "".join(told[:-1]) == "0\n1\n2\n"
        assert told[-1].text == execution.text == "7"
        with pytest.raises(CodeError):
            (await sandbox.run_code("1/0")).raise_for_error()

    run(body)


def test_contexts_run_side_by_side(run):
    async def body(sandbox):
        contexts = [await sandbox.contexts.create() for _ in range(3)]
        begun = time.monotonic()
        code = "import time; time.sleep(2); 1"
        runs = [asyncio.create_task(sandbox.run_code(code, context=context)) for context in contexts]
        assert [execution.text for execution in await asyncio.gather(*runs)] == ["1", "1", "1"]
        assert time.monotonic() - begun < 5

    run(body)


def test_a_stream_is_iterated_and_left(run):
    async def body(sandbox):
        async with sandbox.stream_code("print('x'); 5") as stream:
            kinds = [event.type async for event in stream]
        assert kinds[-1] == "ended"
        assert stream.value.text == "5"
        async with sandbox.stream_code("import time\nprint(1, flush=True)\ntime.sleep(50)") as stream:
            async for event in stream:
                if event.type == "stdout":
                    break
        begun = time.monotonic()
        assert (await sandbox.run_code("2")).text == "2"
        assert time.monotonic() - begun < 20

    run(body)


def test_cancelling_interrupts_the_code(run):
    async def body(sandbox):
        begun = asyncio.Event()
        task = asyncio.create_task(
            sandbox.run_code(
                "print(1, flush=True)\nimport time\ntime.sleep(50)", on_stdout=lambda _: begun.set()
            )
        )
        await asyncio.wait_for(begun.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await asyncio.wait_for(sandbox.run_code("3"), 20)).text == "3"

    run(body)


def test_files_commands_and_processes(run, tmp_path):
    (tmp_path / "up.txt").write_text("up" * 500_000)

    async def body(sandbox):
        await sandbox.files.upload(tmp_path / "up.txt")
        assert (await sandbox.commands.run("wc -c < up.txt")).stdout == "1000000\n"
        await sandbox.files.download("up.txt", tmp_path / "down.txt")
        assert (tmp_path / "down.txt").read_text() == "up" * 500_000
        assert await sandbox.files.write_many({"d/a": "1", "d/b": "2"}) == 2
        assert len(await sandbox.files.download_folder("d", tmp_path / "d")) == 2
        assert not await sandbox.files.exists("nothing")
        async with sandbox.files.watch() as changes:
            await sandbox.files.write("new", "1")
            assert (await changes.__anext__()).path
        process = await sandbox.commands.start("cat")
        await process.write("in\n", close=True)
        assert "".join([chunk.text async for chunk in process.output()]) == "in\n"
        assert (await process.wait()).exit_code == 0

    run(body)


def test_a_client_of_many(url):
    async def main():
        async with AsyncClient(url) as client:
            assert await client.health() == "healthy"
            sandbox = await client.create("kept")
            async with client.connect(sandbox.id) as same:
                assert (await same.run_code("1")).text == "1"
            assert sandbox.id in [info.id for info in await client.sandboxes()]
            await sandbox.close()
            with pytest.raises((NotFound, sandcell.Gone)):
                await client.connect(sandbox.id)
            assert [mirror.base for mirror in await client.mirrors.list()].count(None) == 1
        assert isinstance(await AsyncSandbox.list(), list)

    asyncio.run(main())


def test_both_clients_have_the_same_methods():
    for name in ("Client", "Sandbox", "Files", "Commands", "Contexts", "Mirrors", "Process"):
        one, other = (
            {member for member in dir(cls) if not member.startswith("_")}
            for cls in (getattr(sandcell, name), getattr(sandcell, f"Async{name}"))
        )
        assert one == other
