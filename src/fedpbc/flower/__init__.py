"""FedPBC and its rivals on real machines, through Flower: strategies for the server, a mod for the clients.

    from fedpbc.flower import FedPBC, fedpbc_mod

    strategy = FedPBC(round_deadline=60)        # instead of FedAvg(...)
    @app.train(mods=[fedpbc_mod])               # instead of @app.train()

docs/deployment.md has the rest. Imports NumPy and Flower, never JAX.

Words, one for each thing:

* client i: who has data; it lives in a node, whose id changes when it is started again.
* order, answer: what server and client say to each other beside the model. reply: an answer with a model, that counts.
* A^t, heard: the clients whose reply counted in round t. asked: those that were sent an order.
* base: the model a client goes on from. version v_i: the round in which the base became the server's model.
* replay, catch up: train the rounds v_i, ..., t - 1 that were missed, and round t.
* rule: a method on the server. step: x^(t+1) and a commit, which is applied if the round counts.
* update Delta_i: the reply's model minus x^t. latest update: the one of a client that counted last.
* control variate: SCAFFOLD's c_i of a client, and their mean c.
* correction: what is added to a client's local gradients: c - c_i (SCAFFOLD), z_i (drift-corrected FedPBC).
* length h_i: the sum of the learning rates of a client's local steps.
* table, row: models that the server keeps for a rule, a row each.
* kept: what a client keeps for a method. epoch: what is kept is of one; a client that lost it makes a new one begin.
* cool-down: the last rounds, without local steps.
"""

from __future__ import annotations

from fedpbc.flower.client.correction import DriftCorrection as DriftCorrection
from fedpbc.flower.client.correction import drift_correction as drift_correction
from fedpbc.flower.client.mod import fedpbc_mod as fedpbc_mod
from fedpbc.flower.rehearsal.grid import InProcessGrid as InProcessGrid
from fedpbc.flower.rehearsal.replay import replay_check as replay_check
from fedpbc.flower.rehearsal.trace import drop_by_trace as drop_by_trace
from fedpbc.flower.strategy import UnreliableClients as UnreliableClients

# isort: off
# The methods, in the order in which STRATEGIES shows them. A new one is one file in methods/, and one line here.
from fedpbc.flower.methods.fedpbc import FedPBC as FedPBC
from fedpbc.flower.methods.fedavg import FedAvg as FedAvg
from fedpbc.flower.methods.fedau import FedAU as FedAU
from fedpbc.flower.methods.debiased_fedavg import DebiasedFedAvg as DebiasedFedAvg
from fedpbc.flower.methods.mifa import MIFA as MIFA
from fedpbc.flower.methods.fedvarp import FedVARP as FedVARP
from fedpbc.flower.methods.fedstale import FedStale as FedStale
from fedpbc.flower.methods.scaffold import SCAFFOLD as SCAFFOLD
from fedpbc.flower.methods.fedfade import FedFade as FedFade
from fedpbc.flower.methods.fedpbc_corrected import FedPBCCorrected as FedPBCCorrected
# isort: on

STRATEGIES: dict[str, type[UnreliableClients]] = {
    kind.method: kind for kind in tuple(globals().values()) if isinstance(kind, type) and hasattr(kind, "method")
}
"""Name -> strategy, of all methods that are imported above."""
