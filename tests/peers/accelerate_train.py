"""A script of a user of accelerate: it knows nothing of its launcher."""
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(3):
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(2, 4)).pow(2).mean())
    optimizer.step()
total = accelerator.reduce(torch.ones(1))
print("worker %d of %d, sum %d" % (accelerator.process_index, accelerator.num_processes, int(total)),
      flush=True)
accelerator.end_training()
