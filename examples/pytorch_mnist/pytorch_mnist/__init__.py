"""A small CNN in PyTorch on 5000 MNIST images, few labels per client, as a Flower app."""
