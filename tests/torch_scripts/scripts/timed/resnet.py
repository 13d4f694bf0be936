"""ResNet on images made on the spot, with momentum, after torch's ImageNet example."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inplanes, planes, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes, planes, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, block, layers, num_classes=1000):
        super().__init__()
        self.inplanes = 64
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages = enumerate(layers)
        self.layers = nn.Sequential(
            *[self.stage(block, 64 << i, n, 1 + (i > 0)) for i, n in stages]
        )
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)

    def stage(self, block, planes, blocks, stride):
        downsample, wide = None, planes * block.expansion
        if stride != 1 or self.inplanes != wide:
            conv = nn.Conv2d(self.inplanes, wide, 1, stride, bias=False)
            downsample = nn.Sequential(conv, nn.BatchNorm2d(wide))
        made = [block(self.inplanes, planes, stride, downsample)]
        self.inplanes = wide
        made += [block(wide, planes, 1, None) for _ in range(1, blocks)]
        return nn.Sequential(*made)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layers(x))
        return self.fc(torch.flatten(x, 1))


SIZES = {18: (BasicBlock, [2, 2, 2, 2]), 50: (Bottleneck, [3, 4, 6, 3])}

parser = argparse.ArgumentParser()
parser.add_argument("told")
parser.add_argument("--depth", type=int, choices=SIZES)
parser.add_argument("--batch", type=int)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
torch.cuda.set_device(device)
model = ResNet(*SIZES[args.depth]).to(device)
if dist.get_world_size() > 1:
    model = DistributedDataParallel(model, device_ids=[device])
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss().to(device)
images = torch.randn(args.batch, 3, 224, 224, device=device)
target = torch.randint(1000, (args.batch,), device=device)
model.train()
for _ in range(args.steps):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with torch.autocast("cuda", torch.bfloat16, enabled=args.amp):
        loss = criterion(model(images), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end.record()
torch.cuda.synchronize()
if dist.get_rank() == 0:
    with open(args.told, "w") as file:
        file.write(str(begin.elapsed_time(end) / 1e3))
dist.destroy_process_group()
