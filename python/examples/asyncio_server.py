"""asyncio: one event loop serves requests and sends them, beside anything else that it does."""

import asyncio

import portolan


async def serve(port):
    while True:
        with await port.get_request_async() as request:
            await asyncio.sleep(0.01)  # as if it asked a database
            request.reply(request.header.upper())


async def main():
    with portolan.Domain.private() as domain, domain.bind("upper", synchronous=True) as port:
        server = asyncio.create_task(serve(port))
        right = domain.connect("upper")
        answers = await asyncio.gather(*(right.request_reply_async(b"word %d" % n) for n in range(5)))
        print([answer.header.decode() for answer in answers])
        server.cancel()


asyncio.run(main())
