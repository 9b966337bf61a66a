import json
import os
import shutil
import signal

import pytest
import torch

from oelm import files
from oelm.errors import OelmError
from oelm.training import checkpoints
from oelm.training.checkpoints import newest_valid, resolve, save


def write(folder, step, best=False):
    return save(
        folder,
        save_model=lambda path: write_model(path, step),
        tensors={
            "optimizer": {"w/exp_avg": torch.zeros(64)},
            "random": {"cpu": torch.get_rng_state()},
            "timing": {"steps": torch.zeros(1)},
        },
        freeze={"sites": []},
        state={"step": step, "config": {}},
        best=best,
    )


def write_model(path, step):
    files.write_tensors(path / "model.safetensors", {"w": torch.full((64,), float(step))})
    files.write_json(path / "config.json", {})


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "config.json"])
def test_a_manifest_that_does_not_name_what_a_checkpoint_needs_is_damaged(tmp_path, name):
    write(tmp_path, 1)
    manifest = write(tmp_path, 2) / "manifest.json"
    hashes = json.loads(manifest.read_text())["sha256"]
    del hashes[name]
    manifest.write_text(json.dumps({"sha256": hashes}))
    said = []
    assert newest_valid(tmp_path, said.append).step == 1
    assert f"its manifest does not name {name}" in said[0]


def weights(checkpoint):
    return checkpoint.tensors("model")["w"][0].item()


def test_the_newest_of_several_is_found_and_links_point_where_they_should(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step, best=step == 1)
    assert newest_valid(tmp_path).step == 3
    assert (tmp_path / "latest").resolve().name == "step-3"
    assert (tmp_path / "best").resolve().name == "step-1"
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-1", "step-2", "step-3"]  # best, and the last two


def test_old_checkpoints_make_room(tmp_path):
    for step in range(1, 7):
        write(tmp_path, step, best=step in (1, 2))
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-2", "step-5", "step-6"]


def test_there_is_none_in_an_empty_folder(tmp_path):
    assert newest_valid(tmp_path) is None


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip_a_bit, truncate, remove])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_after_any_damage_the_previous_checkpoint_still_loads(tmp_path, damage, name):
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    damage(newest / name)
    said = []
    found = newest_valid(tmp_path, said.append)
    assert found.step == 1
    assert weights(found) == 1.0
    assert "step-2 is damaged" in said[0]


def test_if_all_are_damaged_that_is_an_error_not_a_fresh_start(tmp_path):
    flip_a_bit(write(tmp_path, 1) / "model.safetensors")
    with pytest.raises(OelmError, match=r"every checkpoint in .* is damaged"):
        newest_valid(tmp_path)


def test_a_manifest_cannot_point_outside_its_folder(tmp_path):
    path = write(tmp_path, 1)
    (path / "manifest.json").write_text('{"sha256": {"../../secret": "x"}}')
    with pytest.raises(OelmError, match="not a plain file name"):
        resolve(path)


class _DieAt:
    """Kill this process with SIGKILL at the n-th file operation of a checkpoint write."""

    def __init__(self, n):
        self.left = n

    def patch(self, module, name):
        original = getattr(module, name)

        def wrapped(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(module, name, wrapped)


def _write_and_die(folder, n):
    """In a forked child: 0 if the write completed, else it died on the way."""
    pid = os.fork()
    if pid == 0:
        dying = _DieAt(n)
        for module, name in (
            (files.os, "fsync"), (files.os, "replace"), (files.os, "chmod"), (files.tempfile, "mkdtemp"),
            (checkpoints, "write_tensors"), (checkpoints, "write_json"), (checkpoints, "file_hash"),
            (checkpoints.os, "symlink"), (shutil, "rmtree"),
        ):  # fmt: skip
            dying.patch(module, name)
        write(folder, 3, best=True)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_kill_9_at_every_stage_of_a_write_leaves_a_checkpoint_that_loads(tmp_path):
    write(tmp_path, 1, best=True)
    write(tmp_path, 2)
    stages, completed = 0, False
    for n in range(1, 200):
        folder = tmp_path / f"try-{n}"
        folder.mkdir()
        for path in tmp_path.glob("step-*"):
            shutil.copytree(path, folder / path.name)
        for link in ("best", "latest"):
            os.symlink(os.readlink(tmp_path / link), folder / link)
        completed = _write_and_die(folder, n) == 0
        found = newest_valid(folder)
        assert found.step in (2, 3), f"stage {n}"
        assert weights(found) == found.step
        for link in ("best", "latest"):
            assert checkpoints.integrity_problem(folder / link) is None, f"{link} at stage {n}"
        if found.step == 3:
            checkpoints.mark_best(found.path)  # as a resumed run does: its state says that step 3 is the best
            assert (folder / "best").resolve().name == "step-3"
        write(folder, 4)  # and the next write works, and sweeps up
        assert newest_valid(folder).step == 4
        assert not list(folder.glob(".step-*"))
        if completed:
            break
        stages += 1
    assert completed
    assert stages > 15


def test_what_was_just_written_stays_even_if_damaged_later_steps_lie_around(tmp_path):
    write(tmp_path, 100, best=True)
    for step in (200, 300):
        flip_a_bit(write(tmp_path, step) / "model.safetensors")
    assert newest_valid(tmp_path).step == 100
    write(tmp_path, 150)
    assert newest_valid(tmp_path).step == 150
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-100", "step-150"]


def test_a_run_without_best_falls_back_to_latest(tmp_path):
    write(tmp_path / "checkpoints", 1)
    assert resolve(tmp_path, "best").step == 1
    with pytest.raises(OelmError, match="holds no checkpoint"):
        resolve(tmp_path / "nowhere")
