"""Trains a C++ model with Levin, then looks at it as a module of PyTorch. Each part is a cell of a notebook.

    PYTHONPATH=build/python .deps/venv/bin/python examples/python/train.py
"""

# %% The extension module: the classes of models.cpp, with their options as keyword arguments.
import levin_py
import torch

levin_py.seed_everything(42)
model = levin_py.SpiralClassifier(hidden=32, lr=0.01)
data = levin_py.Spirals(size=1000, batch_size=50)
print(model)

# %% Training is the C++ loop, as in a program: the same options, callbacks, checkpoints and logs.
trainer = levin_py.Trainer(
    max_epochs=15,
    accelerator="cpu",
    logger=["csv"],
    enable_progress_bar=False,
    callbacks=[{"model_checkpoint": {"monitor": "val_acc", "mode": "max"}}],
)
trainer.fit(model, data)
print(trainer.validate(model, data, ckpt="best")[0])

# %% The model is a torch.nn.Module, whose parameters are the tensors that C++ has trained.
for name, parameter in model.named_parameters():
    print(f"{name:15} {str(tuple(parameter.shape)):9} norm {parameter.norm().item():.3f}")

# %% Its forward is the C++ one: a map of what it answers over the plane.
model.eval()
axis = torch.linspace(-1, 1, 41)
with torch.no_grad():
    plane = torch.stack(torch.meshgrid(axis, axis[::2], indexing="xy"), dim=2)
    answers = model(plane.reshape(-1, 2)).argmax(1).reshape(21, 41)
for row in answers.flip(0):
    print("".join(" ."[answer] for answer in row))

# %% Members that models.cpp binds are there too, and autograd goes through all of it.
point = torch.tensor([[0.3, -0.2]], requires_grad=True)
print("features", tuple(model.features(point).shape))
model(point)[0, 1].backward()
print("gradient of a logit by the point", point.grad)

# %% Data of Python's own: tensors in a loader, not copied.
points = torch.randn(8, 2)
predictions = trainer.predict(model, levin_py.DataLoader({"point": points}, batch_size=4))
print("predictions", torch.cat([batch["spiral"] for batch in predictions[0]]).tolist())

# %% Python's optimizers train it as they train any module; C++ goes on from there.
before = trainer.validate(model, data)[0]["val_loss"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data.setup("fit")
model.train()
for batch in data.train_dataloader():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch["point"]), batch["spiral"]).backward()
    optimizer.step()
print(f"val_loss {before:.4f} before an epoch of torch.optim, {trainer.validate(model, data)[0]['val_loss']:.4f} after it")

# %% Weights go where PyTorch's go.
torch.save(model.state_dict(), trainer.run_directory + "/weights.pth")
again = levin_py.SpiralClassifier(hidden=32)
again.load_state_dict(torch.load(trainer.run_directory + "/weights.pth"))
print("saved in", trainer.run_directory)
