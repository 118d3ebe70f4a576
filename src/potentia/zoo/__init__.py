"""The built-in zoo: a microworld, benchmarks over it, and tiny models pretrained on it with planted exposure.

``models()`` lists the shipped models with their facts, ``write_model_folders(cache)`` lays them out as Hugging Face
folders, ``write_task_files(cache)`` writes the benchmarks. ``tools/zoo_builder`` rebuilds the weights.
"""

from potentia.zoo.benchmarks import BENCHMARK, BENCHMARKS, ZooBenchmark, make_items
from potentia.zoo.library import (
    ZooModel,
    find_model,
    models,
    write_model_folders,
    write_skewed_task,
    write_task_files,
    write_tokenizer,
)
from potentia.zoo.world import World, make_world
