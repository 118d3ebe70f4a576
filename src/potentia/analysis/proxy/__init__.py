"""Proxy tasks for abilities that have not emerged yet: relevance, robustness, choice, forecast."""

from potentia.analysis.proxy.find import Options, Proxies, find_proxies
from potentia.analysis.proxy.forecast import make_forecast
from potentia.analysis.proxy.proxies import choose_proxies, measure_relevance, predict
from potentia.analysis.proxy.robustness import measure_robustness
from potentia.analysis.proxy.sampling import measure_sampling
from potentia.analysis.proxy.validation import validate
