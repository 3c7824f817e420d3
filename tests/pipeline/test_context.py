"""The free-form context: what vanishes, what stays, and what is refused."""

import numpy as np
import pytest
import torch

from evorl import Context, Task
from evorl.pipeline.context import snapshot


def iterate(*stages, steps=1, **values):
    task = Task(Context(**values))
    for stage in stages:
        task.use(stage)
    return task.run(max_step=steps)


def test_any_attribute_passes_from_stage_to_stage():
    def write(ctx):
        ctx.anything, ctx._hidden = [1], 2

    def read(ctx):
        ctx.sum = ctx.anything[0] + ctx._hidden

    assert iterate(write, read).sum == 3


def test_what_is_not_kept_vanishes_and_what_is_kept_stays_for_good():
    seen = []

    def stage(ctx):
        seen.append(("kept" in ctx, "unkept" in ctx, ctx.get("kept")))
        ctx.unkept = True
        if ctx.iteration == 0:
            ctx.kept = "here"
            ctx.keep("kept")  # once is enough, for any number of renewals

    iterate(stage, steps=5)
    assert seen == [(False, False, None)] + [(True, False, "here")] * 4


def test_a_kept_counter_counts():
    def train(ctx):
        ctx.setdefault("train_iter", -1)
        ctx.train_iter += 1
        ctx.keep("train_iter")

    assert iterate(train, steps=10).train_iter == 9


def test_a_name_can_be_kept_before_it_is_written_and_come_back_after_it_was_deleted():
    seen = []

    def stage(ctx):
        ctx.keep("late", "deleted")
        seen.append((ctx.get("late"), ctx.get("deleted")))
        if ctx.iteration == 1:
            ctx.late, ctx.deleted = 1, 1
        if ctx.iteration == 2:
            del ctx.deleted
        if ctx.iteration == 3:
            ctx.deleted = 2

    iterate(stage, steps=5)
    assert seen == [(None, None), (None, None), (1, 1), (1, None), (1, 2)]


def test_setdefault_and_get():
    context = Context(x=1)
    assert context.setdefault("x", 5) == 1
    assert context.setdefault("y", 5) == 5
    assert context.y == 5
    assert context.get("z") is None
    assert context.get("z", 7) == 7
    assert "z" not in context
    assert repr(context) == "Context(x=1, y=5)"
    assert {"x", "y", "keep"} <= set(dir(context))


def test_the_first_context_may_be_given():
    def stage(ctx):
        ctx.seen = ctx.get("given")
        ctx.keep("seen")

    assert iterate(stage, given=3).seen == 3
    assert iterate(stage, steps=2, given=3).seen is None


def test_what_nobody_wrote_is_named_with_what_was_perhaps_meant():
    context = Context(train_iter=3)
    with pytest.raises(AttributeError, match=r"^ctx\.train_ter: no .* did you mean train_iter\?$"):
        _ = context.train_ter
    with pytest.raises(AttributeError, match=r"^ctx\.setdefualt: .*; did you mean setdefault\?$"):
        context.setdefualt("x", 1)
    with pytest.raises(AttributeError, match=r"^ctx\.zzz: no stage has written it$"):
        del context.zzz


def test_what_vanished_is_said_to_have_vanished():
    def stage(ctx):
        if ctx.iteration == 0:
            ctx.steps = 1
        ctx.steps += 1

    with pytest.raises(AttributeError, match=r"ctx\.steps: .*vanished.* ctx\.keep\('steps'\)"):
        iterate(stage, steps=2)


@pytest.mark.parametrize("name", ["keep", "get", "share", "iteration", "_values"])
def test_names_of_the_context_itself_are_refused(name):
    with pytest.raises(AttributeError, match=f"ctx.{name}: this name is the context's own"):
        setattr(Context(), name, 1)
    with pytest.raises(AttributeError, match=f"ctx.{name}: this name is the context's own"):
        Context().setdefault(name, 1)
    with pytest.raises(AttributeError, match=f"ctx.{name}: this name is the context's own"):
        Context().keep(name)


def test_finish_lets_the_later_stages_run_and_ends():
    seen = []

    def evaluate(ctx):
        seen.append(("evaluate", ctx.finish))
        ctx.finish = ctx.iteration == 2

    def train(ctx):
        seen.append(("train", ctx.finish))

    context = iterate(evaluate, train, steps=100)
    assert seen == [("evaluate", False), ("train", False)] * 2 + [
        ("evaluate", False),
        ("train", True),
    ]
    assert context.iteration == 2


def test_finish_cannot_be_taken_back():
    def first(ctx):
        ctx.finish = True

    def second(ctx):
        ctx.finish = False

    assert iterate(first, second, steps=100).iteration == 0


def test_sharing_needs_a_value_and_alone_does_nothing():
    context = Context(x=1)
    context.share("x")
    with pytest.raises(AttributeError, match=r"ctx\.y: no stage has written it"):
        context.share("x", "y")


def test_a_snapshot_holds_nothing_that_training_writes():
    layer = torch.nn.Linear(2, 2)
    context = Context(
        weights=layer.state_dict(),
        nested=[(torch.ones(2), {"a": np.zeros(2)})],
        module=layer,
        loss=layer(torch.ones(2)).sum(),  # no leaf: deepcopy would refuse it
        other=(env := object()),
    )
    taken = snapshot(context)
    expected = {name: value.clone() for name, value in layer.state_dict().items()}
    with torch.no_grad():
        for value in layer.parameters():
            value.add_(1)
    context.nested[0][0].add_(1)
    context.nested[0][1]["a"] += 1
    context.new = 1
    for name, value in expected.items():
        assert taken.weights[name].equal(value)
        assert taken.module.state_dict()[name].equal(value)
    assert type(taken.weights) is type(context.weights)
    assert taken.nested[0][0].equal(torch.ones(2))
    assert taken.nested[0][1]["a"].tolist() == [0, 0]
    assert not taken.loss.requires_grad
    assert taken.other is env
    assert "new" not in taken
