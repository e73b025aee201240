"""Batches for training, made by processes and moved to the trainer.

Workers fill arrays of the domain; the trainer gets tensors over the same memory (DLPack), with no
copy and no pickling. Where PyTorch is not installed, numpy arrays take the tensors' place, and the
program says so.
"""

import numpy

from portolan.multiprocessing import Pool, domain

try:
    import torch
except ImportError:
    torch = None

SAMPLES, BATCH, SHAPE = 256, 32, (3, 64, 64)


def load(indices):
    """What a worker does: decodes and augments a batch, straight into memory that moves."""
    batch = domain().array((len(indices), *SHAPE), numpy.float32)
    labels = domain().array(len(indices), numpy.int64)
    with batch.view() as pictures, labels.view() as classes:
        for place, index in enumerate(indices):
            random = numpy.random.default_rng(index)
            classes[place] = index % 10
            pictures[place] = random.random(SHAPE, numpy.float32) + index % 10
    return batch, labels


class DataLoader:
    """Iterates over batches that workers have made ahead."""

    def __init__(self, samples, batch, workers=2):
        order = numpy.random.default_rng(0).permutation(samples).tolist()
        self.batches = [order[at : at + batch] for at in range(0, samples, batch)]
        self.pool = Pool(workers)

    def __iter__(self):
        for batch, labels in self.pool.imap(load, self.batches):
            if torch is not None:
                yield torch.from_dlpack(batch), torch.from_dlpack(labels)
            else:
                yield batch.numpy(), labels.numpy()

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.pool.terminate()


def main():
    if torch is None:
        print("PyTorch is not installed (pip install torch): numpy arrays take the tensors' place")
    seen = 0
    with DataLoader(SAMPLES, BATCH) as loader:
        for pictures, labels in loader:
            means = pictures.reshape(len(labels), -1).mean(1) if torch is None else pictures.flatten(1).mean(1)
            assert abs(float((means - labels).mean()) - 0.5) < 0.1
            seen += len(labels)
    print(f"{seen} samples in {type(pictures).__module__}.{type(pictures).__name__}s of {tuple(pictures.shape)}")


if __name__ == "__main__":
    main()
