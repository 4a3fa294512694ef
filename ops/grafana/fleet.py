"""*Fleet*: is it healthy, and who is busy?"""

from __future__ import annotations

from ops.grafana.model import Dashboard, Panel, Query, Row, Unit, Variable
from ops.grafana.queries import quantile, rate
from ops.grafana.responses import KEPT

ENGINE = 'model=~"$model"'
NODE = 'node=~"$node"'
BY_REPLICA = "{{replica}} {{node}}"
EVERYBODY = 'max by (component, model, replica, node) (up{job="pomona"})'
REVISION = "on (replica, node) group_left (revision) pomona_model_info"
REQUESTS = "pomona_gateway_requests_total"
CPU = "pomona_host_cpu_seconds_total"
IDLE = f'{NODE},mode="idle"'


def of_replicas(metric: str) -> str:
    return rate(metric, "replica", "node", labels=ENGINE)


def of_host(metric: str, more: str = "", *by: str) -> str:
    """A host with a gateway and an engine is told of by both."""
    return f"max by ({', '.join(('node', *by))}) ({metric}{{{NODE}{more}}})"


def rate_of_host(metric: str, more: str = "") -> str:
    return f"max by (node) (rate({metric}{{{NODE}{more}}}[$__rate_interval]))"


def stat(title: str, description: str, expr: str, unit: Unit = "short") -> Panel:
    return Panel(title, description, (Query(expr),), kind="stat", unit=unit, width=4, height=4)


HEALTH = Row(
    "Is it healthy?",
    (
        stat("Replicas", "Replicas that answer Prometheus.", 'count(up{component="engine"} == 1)'),
        stat("Gateways", "Gateways that answer Prometheus.", 'count(up{component="gateway"} == 1)'),
        stat(
            "Alerts",
            "Alerts that fire.",
            'count(ALERTS{alertname=~"Pomona.*",alertstate="firing"}) or vector(0)',
        ),
        stat(
            "Requests",
            "Requests answered a second.",
            rate(REQUESTS, labels=f'{ENGINE},outcome="success"'),
            unit="reqps",
        ),
        stat(
            "Errors",
            "Part of all requests that failed through our fault.",
            "max(pomona:errors:ratio_rate5m) or vector(0)",
            unit="percentunit",
        ),
        stat(
            "Tokens",
            "Tokens generated a second.",
            rate("pomona_generation_tokens_total", labels=ENGINE),
            unit="short",
        ),
        Panel(
            "Requests, by what clients got",
            "Each once, however many engines were asked. `client_error` and `client_gone` are the "
            "client's doing, `rate_limited` is a full fleet or a key's limit, and `server_error`, "
            "also within a stream, is our fault.",
            (Query(rate(REQUESTS, "outcome", labels='model=~"$model|unknown"'), "{{outcome}}"),),
            kind="stacked",
            unit="reqps",
            width=6,
        ),
        Panel(
            "Refused",
            "What gateways answered with an error of their own, by path and code.",
            (
                Query(
                    rate("pomona_gateway_refusals_total", "path", "reason", labels=""),
                    "{{path}} {{reason}}",
                ),
            ),
            kind="stacked",
            unit="reqps",
            width=6,
        ),
        Panel(
            "Resumed",
            "Streams a minute that lost their replica and went on at another one, and those that "
            "their clients came back for, by gateway.",
            (
                Query(f"60 * {of_replicas('pomona_stream_resumes_total')}", BY_REPLICA),
                Query(
                    f"60 * {of_replicas('pomona_stream_reconnects_total')}",
                    f"{BY_REPLICA} by their clients",
                ),
            ),
            kind="stacked",
            width=6,
        ),
        Panel(
            "Everybody",
            "1: answers Prometheus, 0: does not. Engines of one model are to have one revision.",
            (Query(f"sort_desc({EVERYBODY} * {REVISION} or on (replica, node) {EVERYBODY})"),),
            kind="table",
            width=6,
        ),
        Panel(
            "Versions",
            "How many engines and gateways run each; one line unless an update is under way.",
            (Query("count by (pomona, python, ray, mlx) (pomona_version_info)"),),
            kind="table",
            width=6,
        ),
    ),
)

BUSY = Row(
    "Who is busy?",
    (
        Panel(
            "Running",
            "Requests in the batch of each replica.",
            (Query(f"pomona_requests_running{{{ENGINE}}}", BY_REPLICA),),
        ),
        Panel(
            "Waiting",
            "Requests in the queue of each replica.",
            (Query(f"pomona_requests_waiting{{{ENGINE}}}", BY_REPLICA),),
        ),
        Panel(
            "Generated tokens",
            "Tokens a second from each replica.",
            (
                Query(
                    rate("pomona_generation_tokens_total", "replica", "node", labels=ENGINE),
                    BY_REPLICA,
                ),
            ),
            kind="stacked",
        ),
        Panel(
            "KV cache",
            "Part of its blocks that a new sequence could not take.",
            (Query(f"pomona_kv_cache_usage_ratio{{{ENGINE}}}", BY_REPLICA),),
            unit="percentunit",
        ),
        Panel(
            "Prefix cache hits",
            "Part of the prompts' tokens that was found. Routing decides about it.",
            (
                Query(
                    f"{of_replicas('pomona_prefix_cache_hit_tokens_total')}"
                    f" / {of_replicas('pomona_prefix_cache_query_tokens_total')}",
                    BY_REPLICA,
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Known prompts",
            "Requests a second by where the longest known beginning of their prompt had been sent "
            "before: to the replica that got them, elsewhere, or nowhere that is known.",
            (Query(rate("pomona_prefix_placements_total", "known", labels=ENGINE), "{{known}}"),),
            kind="stacked",
            unit="ops",
        ),
        Panel(
            "Memory of the engine",
            "Bytes that the engine's arrays hold; it should never grow.",
            (Query(f"pomona_memory_active_bytes{{{ENGINE}}}", BY_REPLICA),),
            unit="bytes",
        ),
    ),
)

BEATS = "pomona_heartbeat_requests_total"
FIRST_TOKEN = "pomona_heartbeat_time_to_first_token_seconds"
ANSWERS = (
    '{__name__=~"haproxy_frontend_http_responses_total|nginx_http_responses_total",'
    'proxy=~"clients|"}'
)
CUT = '{__name__=~"haproxy_backend_server_aborts_total|nginx_answers_cut_total",proxy=~"gateways|"}'
READY = (
    'haproxy_backend_active_servers{proxy="gateways"}'
    ' + haproxy_backend_backup_servers{proxy="gateways"}'
)


def of_balancers(selector: str, *by: str) -> str:
    """HAProxy's own metrics, and of nginx what mtail counts."""
    return f"sum by ({', '.join(('instance', *by))}) (rate({selector}[$__rate_interval]))"


FRONT = Row(
    "What do clients meet first?",
    (
        Panel(
            "Heartbeat",
            "Requests a minute that were made to be watched, by what they came to.",
            (Query(f"60 * {rate(BEATS, 'url', 'outcome', labels='')}", "{{url}} {{outcome}}"),),
            kind="stacked",
            width=6,
        ),
        Panel(
            "Heartbeat's first token",
            "The 90th percentile of what its requests wait, through the load balancer.",
            (Query(quantile(90, FIRST_TOKEN, "url", labels=""), "{{url}}"),),
            unit="s",
            width=6,
        ),
        Panel(
            "Load balancers: answers",
            "By class of status, those that no gateway ever saw included.",
            (Query(of_balancers(ANSWERS, "code"), "{{instance}} {{code}}"),),
            kind="stacked",
            unit="reqps",
            width=6,
        ),
        Panel(
            "Load balancers: cut off",
            "Answers that ended with their gateway, and gateways that HAProxy finds ready.",
            (
                Query(of_balancers(CUT), "{{instance}} cut a second"),
                Query(READY, "{{instance}} gateways ready"),
            ),
            width=6,
        ),
    ),
)

HOSTS = Row(
    "The machines",
    (
        Panel(
            "Memory available",
            "Memory that programs could still get.",
            (Query(of_host("pomona_host_memory_available_bytes"), "{{node}}"),),
            unit="bytes",
        ),
        Panel(
            "Memory pressure",
            "macOS: 0 normal, 1 warning, 2 critical. Linux: part of the time in which some task "
            "stood still for want of memory.",
            (
                Query(of_host("pomona_host_memory_pressure_level"), "{{node}} level"),
                Query(
                    rate_of_host("pomona_host_memory_stall_seconds_total", ',scope="some"'),
                    "{{node}} stalled",
                ),
            ),
        ),
        Panel(
            "Swap",
            "Bytes a second, in and out.",
            (
                Query(
                    rate_of_host("pomona_host_swap_in_bytes_total"),
                    "{{node}} in",
                ),
                Query(
                    rate_of_host("pomona_host_swap_out_bytes_total"),
                    "{{node}} out",
                ),
            ),
            unit="Bps",
        ),
        Panel(
            "Disk available",
            "Room where Ray keeps its sessions and logs.",
            (Query(of_host("pomona_host_disk_available_bytes"), "{{node}}"),),
            unit="bytes",
        ),
        Panel(
            "Processors",
            "Part of all processors' time that is not idle.",
            (
                Query(
                    f"1 - {rate(CPU, 'node', labels=IDLE)} / {rate(CPU, 'node', labels=NODE)}",
                    "{{node}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "GPU",
            "Part of the time that the GPU is busy (macOS).",
            (Query(of_host("pomona_host_gpu_utilization_ratio"), "{{node}}"),),
            unit="percentunit",
        ),
        Panel(
            "Heat",
            "macOS: 0 nominal, 1 moderate, 2 heavy, 3 trapping. Linux: degrees over 100.",
            (
                Query(of_host("pomona_host_thermal_pressure_level"), "{{node}} level"),
                Query(
                    f"{of_host('pomona_host_temperature_celsius', '', 'sensor')} / 100",
                    "{{node}} {{sensor}}",
                ),
            ),
        ),
    ),
)

FLEET = Dashboard(
    uid="pomona-fleet",
    title="Pomona: Fleet",
    description="Is it healthy, and who is busy?",
    variables=(
        Variable("model", "pomona_steps_total", "model"),
        Variable("node", "pomona_host_memory_total_bytes", "node"),
    ),
    rows=(HEALTH, FRONT, BUSY, KEPT, HOSTS),
)
