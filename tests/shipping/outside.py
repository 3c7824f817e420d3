"""Runs exported models where there is no evorl: python -I -S outside.py FOLDER LOADER PATH...

FOLDER has one folder for each agent, with obs.npy beside the files that `evorl export` wrote. What
the models answer goes to answer.npz. LOADER is the documentation's code for reading weights. PATH
are the folders of installed packages; without Python's site module nothing else is found, an
editable install of evorl neither.
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

    network = runpy.run_path(loader)["load"](folder, "q")
    interface = json.loads((folder / "agent.json").read_text())["interface"]
    spec = json.loads((folder / "agent.json").read_text())["specs"]["q"]

    def model(obs):
        obs = torch.from_numpy(obs)
        if interface["channels_last"]:
            obs = obs.permute(0, 3, 1, 2)
        elif spec["one_hot"]:
            obs = obs - interface["observation_start"]
        else:
            obs = obs.reshape(len(obs), *(spec["image"] or [spec["inputs"]]))
        q = network(obs)
        return {"action": (q.argmax(1) + interface["action_start"]).numpy(), "q": q.numpy()}

    return model


def model_of(folder, loader):
    import torch

    if (folder / "model.onnx").exists():
        import onnxruntime

        session = onnxruntime.InferenceSession(folder / "model.onnx")
        names = ["action", "q"]
        return lambda obs: dict(zip(names, session.run(names, {"obs": obs}), strict=True))
    if (folder / "model.pt2").exists():
        module = torch.export.load(folder / "model.pt2").module()
        return lambda obs: {
            name: value.detach().numpy() for name, value in module(torch.from_numpy(obs)).items()
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
        obs, model = np.load(folder / "obs.npy"), model_of(folder, loader)
        answer = model(obs)
        parts = [model(obs[:1]), model(obs[1:8]), model(obs[8:])]  # any batch size
        together = np.concatenate([part["q"] for part in parts])
        np.testing.assert_allclose(together, answer["q"], rtol=0, atol=1e-5)
        np.savez(folder / "answer.npz", **answer)
    assert not any(name.partition(".")[0] == "evorl" for name in sys.modules)


main()
