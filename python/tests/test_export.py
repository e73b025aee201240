"""Exported memory: what importers may do, what they notify of, and what the end of either does."""

import asyncio
import os

import numpy
import pytest

import portolan


def test_an_importer_reads_and_writes(domain):
    memory = portolan.ExportMemory(8192)
    assert len(memory) == 8192
    memory.populate()
    memory.write(16, b"from the exporter")
    with domain.export(memory, "notes", "read_write") as export:
        assert (export.name, export.importers) == ("notes", 0)
        imported = domain.import_("notes", timeout=30)
        assert (imported.name, len(imported), export.importers) == ("notes", 8192, 1)
        assert imported.read(16, 17) == b"from the exporter"
        imported.write(100, numpy.arange(4, dtype="u1"))
        assert memory.read(100, 4) == bytes(range(4))
        imported.store_release(0, 77)
        assert memory.load_acquire(0) == imported.load_acquire(0) == 77
        for wrong in [lambda: imported.read(8190, 3), lambda: imported.load_acquire(4), lambda: memory.write(8192, b"x")]:
            with pytest.raises(portolan.UpdateError):
                wrong()
        with pytest.raises(portolan.ExportError):
            domain.export(memory, "again", "read")
        export.unexport()
        with pytest.raises(portolan.Closed):
            export.importers
    for over in [imported.check, lambda: imported.write(0, b"x")]:
        with pytest.raises(portolan.Revoked):
            over()
    assert memory.read(100, 4) == bytes(range(4))
    imported.close()
    with pytest.raises(portolan.Closed):
        imported.check()


def test_an_export_is_read_only_if_it_says_so(domain):
    memory = portolan.ExportMemory(4096)
    with domain.export(memory, "facts", "read", importers=1):
        imported = domain.import_("facts", timeout=30)
        with pytest.raises(portolan.UpdateError, match="read"):
            imported.write(0, b"x")
    with pytest.raises(ValueError, match="everything"):
        domain.export(memory, "facts", "everything")
    with pytest.raises(portolan.NotImported, match="rumours"):
        domain.import_("rumours", timeout=0.05)
    with domain.export(memory, "others", "read", users=[os.getuid() + 1]), pytest.raises(portolan.NotImported):
        domain.import_("others", timeout=5)


def test_notifications_are_waited_for_and_awaited(domain):
    memory = portolan.ExportMemory(4096)
    with domain.export(memory, "notes", "read_write") as export:
        notifications = export.notifications()
        with pytest.raises(portolan.NotificationError):
            export.notifications()
        with pytest.raises(portolan.TimedOut):
            notifications.wait(0.05)
        imported = domain.import_("notes", timeout=30)
        imported.write_notifying(8, b"abc")
        note = notifications.wait(30)
        assert (note.offset, note.len, note.several, note.user) == (8, 3, 0, os.getuid())
        assert memory.read(note.offset, note.len) == b"abc"

        async def main():
            task = asyncio.create_task(notifications.wait_async())
            await asyncio.sleep(0.05)
            assert not task.done()
            imported.write(16, b"later")
            imported.notify(16, 5)
            return await task

        note = asyncio.run(asyncio.wait_for(main(), 60))
        assert (note.offset, note.len) == (16, 5)
        export.close()
        with pytest.raises(portolan.Revoked):
            notifications.wait(30)


def export(name):
    with portolan.Domain.join(name) as domain:
        memory = portolan.ExportMemory(4096)
        memory.write(0, b"alive")
        with domain.export(memory, "notes", "read_write"):
            domain.connect("exported", 60).request_reply(timeout=60)


def test_the_death_of_an_exporter_is_told(domain, name, spawn, patience):
    port = domain.bind("exported", synchronous=True)
    process = spawn(export, name)
    request = port.get_request(patience)
    imported = portolan.Domain.import_from(name, "notes", timeout=patience)
    assert imported.read(0, 5) == b"alive"
    process.kill()
    process.join()
    with pytest.raises(portolan.ExporterDied):
        while True:
            imported.check()
            imported.write(0, b"still there?")
    request.close()


def test_what_a_log_stores_reaches_the_exporter(domain, name, patience):
    memory = portolan.ExportMemory(8192)
    with domain.export(memory, "journal", "write") as export:
        notifications = export.notifications()
        imported = portolan.Domain.import_from(name, "journal", timeout=patience)
        local = portolan.ExportMemory(8192)
        with imported.map_log(local, start=4096, len=1024, offset=64) as log:
            log.store(8, b"the ")
            log.store(12, numpy.frombuffer(b"data", "u1"))
            log.store_release(0, 1)
            assert memory.load_acquire(64) == local.load_acquire(4096) == 1
            assert memory.read(72, 8) == local.read(4104, 8) == b"the data"
            log.store(100, b"more")
            log.flush()
            assert memory.read(164, 4) == b"more"
            log.store(200, b"told")
            log.flush_notifying()
            told = notifications.wait(timeout=patience)
            assert told.offset <= 264 and told.offset + told.len >= 268
            for wrong in [lambda: log.store(1023, b"ab"), lambda: log.store_release(4, 1)]:
                with pytest.raises(portolan.UpdateError):
                    wrong()
            # Memory has one destination.
            with pytest.raises(portolan.UpdateError, match="mapped already"):
                imported.map_log(local, start=4096, len=8)
            log.store(300, b"last")
            log.unmap()
            assert memory.read(364, 4) == b"last"
            with pytest.raises(portolan.Closed):
                log.flush()
        with imported.map_log(local) as log:
            log.store(8191, b"!")
        assert memory.read(8191, 1) == b"!"
        log = imported.map_log(local)
        export.unexport()
        with pytest.raises(portolan.Revoked):
            log.store_release(0, 2)
