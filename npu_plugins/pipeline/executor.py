"""Runs one rank's list of actions, whatever the schedule."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from npu_plugins.pipeline.activations import Layout, as_leaves, take_apart
from npu_plugins.pipeline.control import Control
from npu_plugins.pipeline.errors import PeerLostError, PipelineError
from npu_plugins.pipeline.p2p import Handle, Transfer, Transport
from npu_plugins.pipeline.schedules import Action, Exchange, Kind, Schedule, Span, Step
from npu_plugins.pipeline.schedules.actions import RECEIVES
from npu_plugins.tensor_parallel.deferred import WeightGradients

Place = tuple[int, int]
"""Stage and micro-batch."""


class Job(NamedTuple):
    """What the actions do; the schedule says when."""

    forward: Callable[[int, Any], Any]
    """(stage, input) → output."""
    load: Callable[[int], Any]
    """micro-batch → the first stage's input."""
    finish: Callable[[Any, int], torch.Tensor | None]
    """(the last stage's output, micro-batch) → the scalar where its backward starts; None without
    backward."""
    accumulate: Callable[[], None]
    """Called whenever gradients of parameters have been computed."""


class Failure(NamedTuple):
    """An action that raised."""

    action: Action
    error: Exception


class Arrival(NamedTuple):
    """Tensors that came, or are coming, from a neighbouring stage."""

    tensors: Sequence[torch.Tensor]
    handle: Handle | None

    def wait(self) -> Sequence[torch.Tensor]:
        """Return the tensors once they are there."""
        if self.handle is not None:
            self.handle.wait()
        return self.tensors


class Graph(NamedTuple):
    """What a backward needs: the ends of the autograd graph, not the output's data, which was sent away."""

    roots: list[torch.Tensor | GradientEdge]
    inputs: list[torch.Tensor]
    """Those tensors of the input whose gradients go back."""


class Executor:
    """One rank of a pipeline.

    Receive buffers are allocated when they are posted, with shapes that both ends know: the layout of an
    activation is sent once for each shape of a micro-batch and remembered (`layouts`), so that no transfer
    waits for a description. With `dynamic_shape` the description always precedes.

    A failure must not leave other ranks waiting. The rank on which an action raises does no more computation
    in this step, but goes on with its transfers, sending zeros, or the word that nothing comes; so everyone
    gets to the end of the step, where the engine tells all ranks what happened.
    """

    def __init__(
        self,
        rank: int,
        transport: Transport,
        control: Control,
        device: torch.device,
        store: WeightGradients,
        *,
        dynamic_shape: bool = False,
    ) -> None:
        self.rank, self.device, self.store, self.dynamic_shape = rank, device, store, dynamic_shape
        self.transport, self.control = transport, control
        self.layouts: dict[tuple[int, int, bool], Layout] = {}
        """By stage that is entered, digest of the micro-batch's input, and whether gradients are wanted."""
        self.spans: list[Span] | None = None
        """Filled with measured times while it is a list."""
        self.most_in_flight = 0
        """The most (stage, micro-batch) of the last run whose activations were kept at once."""

    def run(self, schedule: Schedule, job: Job, digests: Sequence[int]) -> Failure | None:
        """Run the rank's actions of one step.

        Args:
            schedule: with exchanges.
            job: what its actions do.
            digests: of each micro-batch's input; equal digests promise equal shapes at every stage.

        Returns:
            What failed here, if anything did.

        Raises:
            PeerLostError: another rank has gone.
        """
        run = _Run(self, schedule, job, digests)
        steps = schedule.steps[self.rank]
        try:
            for place, step in enumerate(steps):
                if isinstance(step, Exchange):
                    run.exchange(step)
                    continue
                if self.transport.matches_in_any_order:
                    run.receive_early(steps[place + 1 :])
                run.compute(step)
            self.transport.finish()
            run.finish()
        except RuntimeError as error:  # a device that has failed once fails at all that follows
            raise error from (run.failure.error if run.failure else error.__cause__)
        self.most_in_flight = run.most_in_flight
        return run.failure


class _Run:
    """The state of one step."""

    def __init__(self, executor: Executor, schedule: Schedule, job: Job, digests: Sequence[int]) -> None:
        self.executor, self.schedule, self.job, self.digests = executor, schedule, job, digests
        self.last = schedule.placement.stages - 1
        self.training = not schedule.forward_only
        self.failed = False
        self.failure: Failure | None = None
        self.layouts: dict[Place, Layout | None] = {}
        """Of what enters a stage; None where nothing comes."""
        self.activations: dict[Place, Arrival] = {}
        self.gradients: dict[Place, Arrival] = {}
        """Of a stage's output."""
        self.outputs: dict[Place, tuple[Layout, list[torch.Tensor]]] = {}
        self.input_gradients: dict[Place, list[torch.Tensor]] = {}
        self.graphs: dict[Place, Graph] = {}
        self.unsent: list[Any] = []
        self.unanswered: dict[Place, Handle] = {}
        """Activations that were sent, whose gradients have not come."""
        self.early: set[Action] = set()
        """Receives that were posted before their turn."""
        self.in_flight: set[Place] = set()
        self.most_in_flight = 0

    def finish(self) -> None:
        """Wait for the descriptions that were sent."""
        for work, _ in self.unsent:
            work.wait()

    def compute(self, action: Action) -> None:
        """Run a compute action, unless something failed before."""
        if self.failed:
            return
        try:
            began = self._wait_for_inputs(action) if self.executor.spans is not None else 0.0
            _ACTIONS[action.kind](self, action.stage, action.micro_batch)
            if self.executor.spans is not None:
                self.executor.spans.append(Span(self.executor.rank, action, began, self._now()))
        except PeerLostError:
            raise
        except Exception as error:
            self.failed, self.failure = True, Failure(action, error)

    def _wait_for_inputs(self, action: Action) -> float:
        """Return when a measured action begins to compute: what it waits for is there, nothing else runs."""
        arrivals = self.activations if action.kind is Kind.FORWARD else self.gradients
        arrival = arrivals.get((action.stage, action.micro_batch))
        if arrival is not None and action.kind is not Kind.WEIGHT_GRADIENT:
            arrival.wait()
        return self._now()

    def _now(self) -> float:
        device = self.executor.device
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)
        return time.time()

    # Compute

    def forward(self, stage: int, micro_batch: int) -> None:
        """F: run the stage; keep what its backward needs."""
        place = (stage, micro_batch)
        leaves: list[torch.Tensor] = []
        if stage == 0:
            inputs = self.job.load(micro_batch)
        else:
            layout = self.layouts[place]
            if layout is None:  # the stage before has failed
                self.failed = True
                return
            leaves = as_leaves(self.activations.pop(place).wait(), layout.slots)
            inputs = layout.fill(leaves)
        output = self.job.forward(stage, inputs)
        roots: list[torch.Tensor | GradientEdge] = []
        if stage == self.last:
            root = self.job.finish(output, micro_batch)
            roots = [] if root is None else [root]
        else:
            layout, tensors = take_apart(output, f"the output of stage {stage}")
            roots = [get_gradient_edge(tensor) for tensor in tensors if tensor.requires_grad]
            self._pass_on(stage, micro_batch, layout, [tensor.detach() for tensor in tensors])
        if self.training:
            self.graphs[place] = Graph(roots, [leaf for leaf in leaves if leaf.requires_grad])
            self.in_flight.add(place)
            self.most_in_flight = max(self.most_in_flight, len(self.in_flight))

    def _pass_on(self, stage: int, micro_batch: int, layout: Layout, tensors: list[torch.Tensor]) -> None:
        """Hand the output to the next stage, if that is here; else keep it until it is sent."""
        following = (stage + 1, micro_batch)
        if self.schedule.placement.rank_of[stage + 1] == self.executor.rank:
            self.layouts[following] = layout
            self.activations[following] = Arrival(tensors, None)
            return
        promised = self._remembered(following)
        if promised is not None and promised != layout:
            raise PipelineError(
                f"the output of stage {stage} is {layout.skeleton}, but a micro-batch of these shapes gave "
                f'{promised.skeleton} before; set "pipeline": {{"dynamic_shape": true}}'
            )
        self.outputs[following] = layout, tensors

    def backward(self, stage: int, micro_batch: int) -> None:
        """B: all gradients at once."""
        with self.executor.store.at_once():
            self._backward(stage, micro_batch)
        self._free(stage, micro_batch)

    def input_gradient(self, stage: int, micro_batch: int) -> None:
        """I: the input's gradient; the layers leave their weights' to the store."""
        with self.executor.store.at(stage, micro_batch):
            self._backward(stage, micro_batch)

    def weight_gradient(self, stage: int, micro_batch: int) -> None:
        """W: run what I has left."""
        self.executor.store.run(stage, micro_batch)
        self._free(stage, micro_batch)
        self.job.accumulate()

    def _free(self, stage: int, micro_batch: int) -> None:
        self.in_flight.discard((stage, micro_batch))

    def _backward(self, stage: int, micro_batch: int) -> None:
        place = (stage, micro_batch)
        graph = self.graphs.pop(place)
        seeds: Sequence[torch.Tensor] | None = None
        if stage != self.last and graph.roots:
            seeds = self.gradients.pop(place).wait()
            if place in self.unanswered:
                self.unanswered.pop(place).wait()  # at once: the gradient's coming proves it has arrived
        if graph.roots:
            torch.autograd.backward(graph.roots, seeds)
        if stage > 0:
            found = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in graph.inputs]
            if self.schedule.placement.rank_of[stage - 1] == self.executor.rank:
                self.gradients[stage - 1, micro_batch] = Arrival(found, None)
            else:
                self.input_gradients[place] = found
        self.job.accumulate()

    # Communication

    def exchange(self, exchange: Exchange) -> None:
        """Post an exchange; descriptions of what is sent go first, so that no two ranks wait for each
        other's."""
        for action in exchange.transfers:
            if action.kind is Kind.SEND_ACTIVATION:
                self._describe(action)
        self._post(action for action in exchange.transfers if action not in self.early)

    def receive_early(self, following: Iterable[Step]) -> None:
        """Post the receives that stand right behind the next action, so that what is sent meanwhile need not
        wait for the action's end; as far as it is known what comes."""
        for step in following:
            if not isinstance(step, Exchange):
                return
            for action in step.transfers:
                if action.kind not in RECEIVES:
                    continue
                if self.failed or not self._is_known(action):
                    return  # the receives of a peer keep their order
                self.early.add(action)
                self._post([action])

    def _is_known(self, action: Action) -> bool:
        """Return whether the layout of a receive needs no word from the peer."""
        place = (action.stage, action.micro_batch)
        if action.kind is Kind.RECEIVE_ACTIVATION:
            return self._remembered(place) is not None
        return self.layouts.get((action.stage + 1, action.micro_batch)) is not None

    def _post(self, actions: Iterable[Action]) -> None:
        pairs: list[tuple[Action, Transfer]] = []
        for action in actions:
            if action.kind is Kind.RECEIVE_ACTIVATION and not self._is_known(action):
                # The peer may first need what precedes, to find out what it will send.
                self._start(pairs)
                pairs = []
            if pair := self._transfer(action):
                pairs.append(pair)
        self._start(pairs)

    def _start(self, pairs: list[tuple[Action, Transfer]]) -> None:
        """Post these together."""
        handles = self.executor.transport.post([transfer for _, transfer in pairs])
        for (action, transfer), handle in zip(pairs, handles, strict=True):
            place = (action.stage, action.micro_batch)
            if action.kind is Kind.RECEIVE_ACTIVATION:
                self.activations[place] = Arrival(transfer.tensors, handle)
            elif action.kind is Kind.RECEIVE_GRADIENT:
                self.gradients[place] = Arrival(transfer.tensors, handle)
            elif action.kind is Kind.SEND_ACTIVATION and self.training:
                self.unanswered[place] = handle

    def _describe(self, action: Action) -> None:
        """Settle the layout of what is about to be sent, and tell it where it is new."""
        place = (action.stage + 1, action.micro_batch)
        known = self._remembered(place)
        if known is not None:
            self.layouts[place] = known
            return
        layout = self.outputs[place][0] if place in self.outputs else None
        self.layouts[place] = layout
        assert action.peer is not None
        self.unsent += self.executor.control.send(layout, action.peer, self._tag(place))
        self._remember(place, layout)

    def _transfer(self, action: Action) -> tuple[Action, Transfer] | None:
        place = (action.stage, action.micro_batch)
        assert action.peer is not None
        if action.kind is Kind.SEND_ACTIVATION:
            layout = self.layouts[action.stage + 1, action.micro_batch]
            _, tensors = self.outputs.pop((action.stage + 1, action.micro_batch), (None, None))
            slots = [] if layout is None else list(layout.slots)
        elif action.kind is Kind.RECEIVE_ACTIVATION:
            layout = self._expected(place, action.peer)
            slots, tensors = [] if layout is None else list(layout.slots), None
        elif action.kind is Kind.SEND_GRADIENT:
            layout = self.layouts[place]
            tensors = self.input_gradients.pop(place, None)
            slots = [] if layout is None else layout.gradients()
        else:
            layout = self.layouts[action.stage + 1, action.micro_batch]
            slots, tensors = [] if layout is None else layout.gradients(), None
        sends = action.kind in (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT)
        if layout is None:
            return None
        if tensors is None:
            tensors = [slot.empty(self.executor.device) for slot in slots]
            if sends:  # after a failure: the peer computes with harmless numbers
                tensors = [tensor.zero_() for tensor in tensors]
        elif sends:
            tensors = [tensor.contiguous() for tensor in tensors]
        return action, Transfer(action.peer, tensors, sends, str(action))

    def _expected(self, place: Place, peer: int) -> Layout | None:
        """Return the layout of what arrives at a stage."""
        layout = self._remembered(place)
        if layout is None:
            layout = self.executor.control.receive(peer, self._tag(place))
            self._remember(place, layout)
        self.layouts[place] = layout
        return layout

    def _remembered(self, place: Place) -> Layout | None:
        if self.executor.dynamic_shape:
            return None
        return self.executor.layouts.get((place[0], self.digests[place[1]], self.training))

    def _remember(self, place: Place, layout: Layout | None) -> None:
        if layout is not None and not self.executor.dynamic_shape:
            self.executor.layouts[place[0], self.digests[place[1]], self.training] = layout

    def _tag(self, place: Place) -> int:
        return place[0] * self.schedule.micro_batches + place[1] + 1


_ACTIONS: dict[Kind, Callable[[_Run, int, int], None]] = {
    Kind.FORWARD: _Run.forward,
    Kind.INPUT_GRADIENT: _Run.input_gradient,
    Kind.WEIGHT_GRADIENT: _Run.weight_gradient,
    Kind.BACKWARD: _Run.backward,
}


def gradients_enabled(schedule: Schedule) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which `schedule` runs: without autograd where it has forwards only."""
    return torch.no_grad() if schedule.forward_only else contextlib.nullcontext()
