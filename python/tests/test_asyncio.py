"""Awaiting: other tasks run meanwhile, and a cancelled task has taken nothing."""

import asyncio

import pytest

import portolan


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_messages_are_awaited_while_other_tasks_run(domain):
    async def main():
        port = domain.bind()
        right = port.make_send()
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        waiting = asyncio.create_task(port.receive_async())
        await asyncio.sleep(0.2)
        assert not waiting.done() and ticks > 5
        right.send(b"one")
        assert (await waiting).header == b"one"
        for n in range(100):
            right.send(b"%d" % n, timeout=0) if n < 50 else await right.send_async(b"%d" % n)
            assert (await port.receive_async()).header == b"%d" % n
        ticking.cancel()

    run(main())


def test_a_cancelled_task_loses_nothing(domain):
    async def main():
        port = domain.bind()
        right = port.make_send()
        for n in range(20):
            task = asyncio.create_task(port.receive_async())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if n % 2:
                right.send(b"%d" % n)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if n % 2:
                assert (await port.receive_async()).header == b"%d" % n
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(port.receive_async(), 0.05)

    run(main())


def test_two_tasks_await_one_port(domain):
    async def main():
        port = domain.bind()
        right = port.make_send()
        tasks = [asyncio.create_task(port.receive_async()) for _ in range(2)]
        await asyncio.sleep(0.05)
        right.send(b"1")
        right.send(b"2")
        assert sorted(m.header for m in await asyncio.gather(*tasks)) == [b"1", b"2"]

    run(main())


def test_requests_are_awaited(domain):
    async def main():
        port = domain.bind(synchronous=True)
        right = port.make_send()

        async def serve():
            while True:
                with await port.get_request_async() as request:
                    request.reply(request.header + b"!")

        serving = asyncio.create_task(serve())
        answers = await asyncio.gather(*(right.request_reply_async(b"%d" % n) for n in range(20)))
        assert [a.header for a in answers] == [b"%d!" % n for n in range(20)]
        assert (await right.begin_request(b"awaited")).header == b"awaited!"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        abandoned = asyncio.create_task(right.request_reply_async(b"?"))
        await asyncio.sleep(0.05)
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        with pytest.raises(portolan.DeadName):
            port.get_request(0).reply(b"")
        asked = asyncio.create_task(right.request_reply_async(b"?"))
        await asyncio.sleep(0.05)
        port.close()
        with pytest.raises(portolan.ServerDead):
            await asked

    run(main())


def test_room_is_awaited(domain):
    async def main():
        port = domain.bind(queue=1)
        right = port.make_send()

        async def fill():
            for n in range(50):
                await right.send_async(b"%d" % n)

        filling = asyncio.create_task(fill())
        await asyncio.sleep(0.05)
        assert not filling.done()
        for n in range(50):
            assert (await port.receive_async()).header == b"%d" % n
        await filling

    run(main())


def test_a_port_that_is_closed_ends_the_await(domain):
    async def main():
        port = domain.bind()
        task = asyncio.create_task(port.receive_async())
        await asyncio.sleep(0.05)
        port.close()
        with pytest.raises(portolan.Closed):
            await task

    run(main())


def test_samples_are_awaited(domain):
    async def main():
        subscriber = domain.subscriber("numbers", "f8")
        publisher = domain.publisher("numbers", "f8")
        task = asyncio.create_task(subscriber.receive_async())
        await asyncio.sleep(0.05)
        assert not task.done()
        publisher.publish(4.5)
        assert (await task).numpy() == 4.5

    run(main())
