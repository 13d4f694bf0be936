"""nn.DataParallel as its tutorial has it: one process, all GPUs, the batch cut by the wrapper."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)


class RandomDataset(Dataset):
    def __init__(self, size, length):
        self.data = torch.randn(length, size)
        self.label = self.data.sum(1, keepdim=True).tanh()

    def __getitem__(self, index):
        return self.data[index], self.label[index]

    def __len__(self):
        return len(self.data)


class Model(nn.Module):
    def __init__(self, input_size, output_size):
        super().__init__()
        self.hidden = nn.Linear(input_size, 16)
        self.fc = nn.Linear(16, output_size)

    def forward(self, x):
        output = self.fc(torch.relu(self.hidden(x)))
        print("\tIn model: input size", x.size(), "output size", output.size())
        return output


device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
loader = DataLoader(RandomDataset(5, 100), batch_size=30, shuffle=True)
model = Model(5, 1)
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    model = nn.DataParallel(model)
model.to(device)

optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.MSELoss()
for epoch in range(3):
    for data, label in loader:
        inputs, label = data.to(device), label.to(device)
        output = model(inputs)
        loss = loss_fn(output, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.6f}")

net = model.module if isinstance(model, nn.DataParallel) else model
torch.save({name: tensor.cpu() for name, tensor in net.state_dict().items()}, "weights.pt")
