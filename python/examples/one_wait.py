"""One wait for everything: a row of a shared table that another process changed, a message, a line of
text from a socket, a timer, and the end of a process. asyncio waits for all of them.
"""

import asyncio
import os

import portolan
from portolan.multiprocessing import Process


def change(name, path):
    """The other process: it changes a row and says so, sends a message, writes a line, and ends."""
    import socket

    with portolan.Domain.join(name) as domain:
        table = domain.find_segment("table", timeout=60)
        table.numpy()[0] = 7
        domain.signal(table.address)
        domain.connect("mail", timeout=60).send(b"a letter")
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(path)
            line.send(b"hello\n")


async def main():
    name = f"one-wait-python-{os.getpid()}"
    happened = asyncio.Queue()
    with portolan.Domain.join(name) as domain, domain.listen() as listener, domain.bind("mail") as mail:
        table = domain.make_segment("table", 4096)
        listener.on(table.addresses, lambda _: happened.put_nowait(f"row is {table.numpy()[0]}"))

        async def letter():
            happened.put_nowait(f"mail is {(await mail.receive_async()).header.decode()!r}")

        async def text(reader, writer):
            happened.put_nowait(f"text is {(await reader.readline()).decode()!r}")
            writer.close()

        async def tick():
            await asyncio.sleep(0.005)
            happened.put_nowait("tick")

        server = await asyncio.start_unix_server(text, f"\0{name}")
        process = Process(target=change, args=(name, f"\0{name}"))
        process.start()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process.sentinel, ended.set)

        async def end():
            await ended.wait()
            asyncio.get_running_loop().remove_reader(process.sentinel)
            happened.put_nowait("the other process has ended")

        tasks = [asyncio.create_task(one) for one in (listener.wait_async(), letter(), tick(), end())]
        for _ in range(5):
            print(await asyncio.wait_for(happened.get(), 60))
        await asyncio.gather(*tasks)
        server.close()
        process.join()


if __name__ == "__main__":
    asyncio.run(main())
