"""The embedded zoo: a microworld, benchmarks over it, and tiny models pretrained on it with planted exposure.

``models()`` lists the shipped models with their facts, ``model_folders(cache)`` lays them out as Hugging Face folders,
``task_folder(cache)`` writes the benchmarks. ``tools/zoo_builder`` rebuilds the weights.
"""

from potentia.zoo.benchmarks import BENCHMARK, BENCHMARKS, Benchmark, items
from potentia.zoo.library import (
    ZooModel,
    model,
    model_folders,
    models,
    task_folder,
    write_tokenizer,
)
from potentia.zoo.world import World, make_world
