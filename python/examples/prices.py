"""A topic of tables: a market publishes what it knows, and a shop in another process looks things up in it,
where it lies.

In Rust the table is a structure of maps and texts. Python has numpy's structured arrays: here it is an
array of names and prices that is sorted by name, so that a name is found by bisection.
"""

import os

import numpy

import portolan
from portolan.multiprocessing import Process

PRICE = numpy.dtype([("name", "S24"), ("cents", "<u8"), ("day", "<u4")])


def shop():
    """Reads in place: nothing is copied, however much there is."""
    name = f"prices-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain, domain.subscriber("market", PRICE) as markets:
        market = Process(target=sell, args=(name,))
        market.start()
        kept = []
        for _ in range(2):
            sample = markets.receive(timeout=60)
            prices = sample.numpy()
            saffron = prices[numpy.searchsorted(prices["name"], b"saffron")]
            cheapest = prices[prices["cents"].argmin()]
            print(
                f"day {prices[0]['day']}: {len(prices)} things, saffron for {saffron['cents']}, "
                f"the cheapest is {cheapest['name'].decode()}"
            )
            kept.append(sample)
        domain.connect("stop", timeout=60).send(timeout=60)
        market.join()
        # The market has gone; a subscriber that keeps a sample has it still.
        print(f"of day {kept[0].numpy()[0]['day']}: kept")


def sell(name):
    """Publishes each day's prices."""
    with portolan.Domain.join(name) as domain, domain.bind("stop") as stop:
        with domain.publisher("market", PRICE, history=2) as markets:
            for day in (1, 2):
                rows = [(b"saffron", 900 + day, day), (b"pepper", 70 + day, day), (b"salt", 3 + day, day)]
                rows += [(b"thing %d" % thing, 10, day) for thing in range(1000 * day)]
                markets.publish(numpy.array(sorted(rows), PRICE))
            stop.receive(timeout=60)


if __name__ == "__main__":
    shop()
