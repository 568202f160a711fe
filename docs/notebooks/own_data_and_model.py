# %% [markdown]
# # Own data and model
#
# Digits of scikit-learn, dealt out to twenty clients so that each has few of the ten digits; a network of two functions; and
# FedAvg against FedPBC over links that fail more often for clients with small digits.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fedpbc

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(
    X.astype("float32") / 16, y, test_size=0.2, random_state=0
)
data = fedpbc.data.from_arrays(X, y, test=(X_test, y_test))
data = data.dirichlet(num_clients=20, alpha=0.1)

# %% [markdown]
# A model is `init(key, shape, num_outputs)`, which gives any pytree of arrays, and `apply(params, features)`.


# %%
def init(key, shape, num_outputs):
    hidden = jax.random.normal(key, (shape[0], 32)) / shape[0] ** 0.5
    return {"hidden": hidden, "out": jnp.zeros((32, num_outputs))}


def apply(params, features):
    return jnp.tanh(features @ params["hidden"]) @ params["out"]


network = fedpbc.models.functions(init=init, apply=apply)
problem = fedpbc.problems.classification(data, model=network)

# %% [markdown]
# Every method of a seed sees the same links and the same samples.

# %%
prob = fedpbc.probabilities.by_trait(low=0.05, high=0.9)
run = fedpbc.simulate(
    problem,
    links=fedpbc.links.bernoulli(prob=prob).using(label="small digits rarely"),
    algorithm=[fedpbc.algorithms.fedavg(), fedpbc.algorithms.fedpbc()],
    rounds=60,
    local_steps=5,
    learning_rate=0.1,
    seeds=range(2),
    eval_every=4,
    progress=False,
)
frame = run.to_pandas().groupby(["round", "algorithm"])["server_test_accuracy"].mean()
frame.unstack().tail(4).round(3)

# %%
run.plot(["test_accuracy"])

# %% [markdown]
# The trained model is the pytree that `init` gave. Which digits does the server get wrong?

# %%
params = run.model(algorithm="fedavg", seed=0)
wrong = np.asarray(apply(params, X_test).argmax(axis=1)) != y_test
print("wrong per digit:", np.bincount(y_test[wrong], minlength=10).tolist())
