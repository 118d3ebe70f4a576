"""Proxy tasks for abilities that have not emerged yet: relevance, robustness, choice, forecast."""

from potentia.analysis.proxy.find import Options, Proxies, find_proxies
from potentia.analysis.proxy.proxies import (
    choose_proxies,
    measure_relevance,
    measure_robustness,
    measure_sampling,
    predict,
)
from potentia.analysis.proxy.validation import make_forecast, validate
