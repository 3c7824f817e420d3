"""Runs exported models where there is no evorl: python -I -S outside.py FOLDER LOADER PATH...

FOLDER has one folder for each agent, with obs.npy, and mask.npy where the agent reads masks, beside
the files that `evorl export` wrote. What the models answer goes to answer.npz. LOADER is the
documentation's code for reading weights. PATH are the folders of installed packages; without
Python's site module nothing else is found, an editable install of evorl neither.
"""

import contextlib
import json
import runpy
import sys
from pathlib import Path


class NoEvorl:
    """Evorl cannot be imported, wherever it may be."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "evorl":
            raise ModuleNotFoundError(name)


def from_weights(folder, loader):
    """By the documentation's code, and what it says about observations and actions."""
    import torch

    about = json.loads((folder / "agent.json").read_text())
    interface, name = about["interface"], next(iter(about["specs"]))
    network, spec = runpy.run_path(loader)["load"](folder, name), about["specs"][name]
    start = torch.tensor(interface["action_start"])
    low, high = torch.tensor(interface["low"]), torch.tensor(interface["high"])

    def action_of(outputs, mask):
        kind = about["algorithm"]["name"]
        if mask is not None:
            outputs = outputs.masked_fill(mask == 0, -torch.inf)
        if not interface["low"]:
            parts = outputs.split(spec["choices"] or [spec["outputs"]], 1)
            return torch.stack([part.argmax(1) for part in parts], 1) + start
        if kind == "sac":
            outputs = outputs[:, : len(low)]
        inside = torch.tanh(outputs) if kind in ("ddpg", "td3", "sac") else outputs.clip(-1, 1)
        return low + (inside + 1) / 2 * (high - low)

    def model(obs, mask=None):
        obs = torch.from_numpy(obs)
        if interface["channels_last"]:
            obs = obs.permute(0, 3, 1, 2)
        elif spec["one_hot"]:
            obs = obs - interface["observation_start"]
        else:
            obs = obs.reshape(len(obs), *(spec["image"] or [spec["inputs"]]))
        outputs = network(obs)
        action = action_of(outputs, mask if mask is None else torch.from_numpy(mask))
        action = action.reshape(len(obs), *interface["action_shape"])
        dtype = getattr(torch, interface["action_dtype"])
        return {"action": action.to(dtype).numpy(), name: outputs.numpy()}

    return model


def model_of(folder, loader):
    import torch

    if (folder / "model.onnx").exists():
        import onnxruntime

        session = onnxruntime.InferenceSession(folder / "model.onnx")
        names = [output.name for output in session.get_outputs()]
        reads = [each.name for each in session.get_inputs()]
        assert reads == ["obs", "mask"][: len(reads)]
        return lambda *inputs: dict(
            zip(names, session.run(names, dict(zip(reads, inputs, strict=True))), strict=True)
        )
    if (folder / "model.pt2").exists():
        module = torch.export.load(folder / "model.pt2").module()
        return lambda *inputs: {
            name: value.detach().numpy()
            for name, value in module(*map(torch.from_numpy, inputs)).items()
        }
    return from_weights(folder, loader)


def main():
    root, loader = Path(sys.argv[1]).resolve(), sys.argv[2]
    sys.path += sys.argv[3:]
    with contextlib.suppress(ModuleNotFoundError):
        import evorl

        raise SystemExit(f"evorl can be imported: {evorl.__file__}")
    sys.meta_path.insert(0, NoEvorl())
    import numpy as np

    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        files = [folder / "obs.npy", folder / "mask.npy"]
        inputs, model = [np.load(file) for file in files if file.exists()], model_of(folder, loader)
        answer = model(*inputs)
        batches = [slice(1), slice(1, 8), slice(8, None)]  # any size will do
        parts = [model(*(one[batch] for one in inputs)) for batch in batches]
        for name in answer.keys() - {"action"}:
            together = np.concatenate([part[name] for part in parts])
            np.testing.assert_allclose(together, answer[name], rtol=0, atol=1e-5)
        np.savez(folder / "answer.npz", **answer)
    assert not any(name.partition(".")[0] == "evorl" for name in sys.modules)


main()
