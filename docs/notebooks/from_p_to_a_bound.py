# %% [markdown]
# # From p to weights, rho and a bound
#
# All that the theory needs to know of the links is p, how often the server hears from each client. From a p to what FedAvg
# optimises instead of F, how fast FedPBC mixes, and what Theorem 1 promises. NumPy only, and exact.

# %%
import matplotlib.pyplot as plt
import numpy as np

from fedpbc import theory

m = 100
p = np.linspace(0.05, 0.95, m)

# %% [markdown]
# **FedAvg's weights** (Proposition 1). FedAvg over the active clients goes to the minimiser of sum w_i F_i. With equal p the weights are
# 1/m; here the clients that are heard often count more than ten times as much.

# %%
weights = theory.fedavg_weights(p)
print(f"from {m * weights.min():.2f}/m to {m * weights.max():.2f}/m")

# %% [markdown]
# **What that does to the model.** For quadratics F_i(x) = 1/2 ||x - u_i||^2 the limit is known: sum w_i u_i instead of the mean of the u_i.

# %%
centers = np.arange(1.0, m + 1)[:, None]
(limit,) = theory.fedavg_limit(p, centers)
print(f"the minimiser is {centers.mean():.1f}, FedAvg goes to {limit:.1f}")

# %% [markdown]
# **How fast FedPBC mixes** (Lemma 2). A round leaves at most rho of the expected squared distance between clients and their mean; the
# paper only bounds rho, here it is computed. The cool-down is how many rounds without local steps bring the clients together.

# %%
rho = theory.mixing_rate(p)
print(f"rho = {rho:.4f}; Lemma 1 says at most {theory.mixing_rate_bound(p.min(), m):.8f}")
print("rounds until a thousandth of it is left:", theory.cooldown_rounds(p, 1e-3))

# %% [markdown]
# **The bound** (Theorem 1) on the mean square gradient norm over T rounds, term by term, where its conditions on the learning
# rate hold. They are strict: the bound explains, it does not set a learning rate.

# %%
constants = theory.quadratic_constants(centers)
local_steps, rounds = 5, 10**7
strictest = theory.step_size_conditions(1e-9, local_steps, rho, constants)[0]
eta = strictest.limit / 2
gap = centers.mean() ** 2 / 2  # F(x^0) - F*
bound = theory.convergence_bound(eta, local_steps, rounds, m, rho, constants, gap)
print(f"{strictest.name!r} asks for a learning rate of at most {strictest.limit:.2g}")
print(f"at half of it, from the start: {bound.initial_gap:.3g}")
print(f"from clients that differ: {bound.client_drift_error:.3g}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(p, m * weights)
left.axhline(1, color="grey", linewidth=0.8)
left.set(xlabel="p, how often a client is heard", ylabel="m w, its weight in FedAvg")
least = np.linspace(0.02, 0.95, 40)
ramps = [np.linspace(low, 0.95, m) for low in least]
right.plot(least, [theory.mixing_gap(ramp) for ramp in ramps], label="1 - rho")
right.plot(least, [theory.mixing_gap_bound(ramp) for ramp in ramps], "--", label="a lower bound")
right.set(xlabel="p of the client that is heard least", yscale="log")
right.set(ylabel="1 - rho, how fast FedPBC mixes")
_ = right.legend()
