"""The job file as frozen values: one attrs class a TOML table.

Pure data. Nothing here knows which plugins exist: a plugin's name is a string and its options
are a plain table, given to the plugin's own ``options`` class once it has been loaded
(``rolecall.config.resolve``). Durations are seconds; sizes are bytes.

The dataclass field names *are* the TOML keys, and the docstring of each class is the source of
``docs/reference/config.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen, validators

_positive: Any = validators.gt(0)
_not_negative: Any = validators.ge(0)

PRIVATE_RAY = "local"
"""``cluster.address`` of a job that starts a Ray of its own."""

Options = Mapping[str, Any]
"""A plugin's own table, checked against the plugin's ``options`` class after loading."""


@frozen(kw_only=True)
class JobSection:
    """``[job]``: the job's name and who watches it.

    name: lower-case letters, digits and dashes; names the Ray namespace and the run folder.
    observers: names of observer plugins that receive every event.
    event_log: JSON-lines file that receives every event; relative to the job file. None: no file.
    journal: file with what the coordinator decided, from which a run is resumed; relative to the job file, on
        a local disk of the node of the job's process. None: beside the job's state file.
    """

    name: str = field(validator=validators.matches_re(r"[a-z0-9][a-z0-9-]{0,39}"))
    observers: tuple[str, ...] = ()
    event_log: str | None = None
    journal: str | None = None


@frozen(kw_only=True)
class PluginsSection:
    """``[plugins]``: which installed plugins count, in every process of the job.

    block: plugins that count as not installed: a distribution (``acme-routing``), a plugin
        (``routing_policy/sticky``), or a plugin of a distribution (``acme-routing/routing_policy/sticky``).
        ``rolecall --block`` adds to it.
    trace: tell on standard error what is done with each plugin; also ``rolecall --trace-plugins``.
    """

    block: tuple[str, ...] = ()
    trace: bool = False


@frozen(kw_only=True)
class ClusterSection:
    """``[cluster]``: the Ray cluster that carries the job.

    address: ``local`` starts a private Ray that ends with the job; ``auto`` or ``host:port``
        joins a running cluster, which is left running.
    object_store_bytes: object store of a local Ray; ignored when joining.
    """

    address: str = PRIVATE_RAY
    object_store_bytes: int = field(default=100 * 1024**2, validator=validators.ge(80 * 1024**2))

    @property
    def is_private(self) -> bool:
        """Whether the job starts a Ray of its own."""
        return self.address == PRIVATE_RAY


@frozen(kw_only=True)
class PlacementSection:
    """``[placement]``: which devices the job has and how the roles share them.

    mode: name of a placement-mode plugin; may be left out with ``layout``.
    resource: Ray resource that one device is: ``GPU``, ``CPU``, or a custom one such as ``device_slot``.
    devices: devices that the job has. Modes that share one pool make it as large, or, without this key,
        as large as the training roles need; modes that give each role a pool of its own stay within it.
    devices_per_node: devices on each node.
    nodes: devices of each node where they differ, instead of ``devices`` and ``devices_per_node``.
    layout: who gets which part of the devices, in short: ``"rollout[1/2] + genrm[1/2] -> actor[*]"``. It
        stands for ``mode``, ``devices``, the models' ``replicas`` and the training roles' ``devices``.
    """

    mode: str | None = None
    resource: str = "GPU"
    devices: int | None = field(default=None, validator=validators.optional(_positive))
    devices_per_node: int = field(default=8, validator=_positive)
    nodes: tuple[int, ...] | None = field(
        default=None,
        validator=validators.optional([validators.min_len(1), validators.deep_iterable(_positive)]),
    )
    layout: str | None = None


@frozen(kw_only=True)
class GatewaySection:
    """``[gateway]``: the HTTP front of every role.

    host: address that Ray Serve listens on.
    port: port that it listens on; 0 picks a free one.
    replicas: processes that serve each role's gateway on Ray Serve. What is counted in a gateway (requests
        under way, of a caller or at an engine) is counted in each of them.
    ha_proxy: have Ray Serve put HAProxy in front of them, which costs far less than its own proxy. The
        program comes with ``ray[serve]`` on Linux.
    drain_s: how long requests that are under way may go on when the gateway that has them ends.
    max_body_bytes: larger request bodies are answered 413.
    max_head_bytes: larger request heads, path and headers, are answered 431.
    max_requests_per_caller: requests, long polls too, that one caller may have under way at one gateway; more
        are answered 429. A caller is a token where there are several, else an address. None: no limit.
    request_timeout_s: deadline of one request; past it the engine is told to abort (504).
    allow_unauthenticated: must be true to listen on a non-loopback address without a token.
    bearer_token_env: environment variable holding the token callers must send, or several with blanks or
        commas between them; a job's own calls send the first.
    """

    host: str = "127.0.0.1"
    port: int = field(default=0, validator=[validators.ge(0), validators.le(65535)])
    replicas: int = field(default=1, validator=_positive)
    ha_proxy: bool = False
    drain_s: float = field(default=30.0, validator=_not_negative)
    max_body_bytes: int = field(default=32 * 1024**2, validator=_positive)
    max_head_bytes: int = field(default=64 * 1024, validator=_positive)
    max_requests_per_caller: int | None = field(default=None, validator=validators.optional(_positive))
    request_timeout_s: float = field(default=600.0, validator=_positive)
    allow_unauthenticated: bool = False
    bearer_token_env: str | None = None


@frozen(kw_only=True)
class LifecycleSection:
    """``[lifecycle]``: deadlines of engine and lease operations, seconds.

    start_timeout_s: one engine from process start to ready, weights already on disk.
    manager_timeout_s: one onload or offload of a role; past it the lease is BLOCKED.
    drain_grace_s: how long running requests may finish before they are aborted.
    probe_interval_s: pause between two reconciler rounds.
    """

    start_timeout_s: float = field(default=300.0, validator=_positive)
    manager_timeout_s: float = field(default=180.0, validator=_positive)
    drain_grace_s: float = field(default=5.0, validator=_not_negative)
    probe_interval_s: float = field(default=2.0, validator=_positive)


@frozen(kw_only=True)
class ModelConfig:
    """``[roles.<role>.models.<model>]``: one model and its replicas.

    source: a local path, ``pypi:package==version`` or ``hf:repo[@revision]``.
    engine: name of an engine-backend plugin.
    replicas: logical replicas.
    max_replicas: up to how many replicas the model may be scaled out while the job runs. None: it always has
        those that are written here.
    external_replicas: whether engines that somebody else runs may be among them, added by their URLs.
    prefill_replicas: how many of the replicas do the first half of every request, the prefill; the others
        do the second, the decoding. 0: each replica does all of it. Needs a routing policy whose router
        brings such pairs together, and an engine that can be half of one.
    devices_per_engine: devices that one replica occupies.
    tensor_parallel: devices that share each layer; None takes what pipeline_parallel leaves.
    pipeline_parallel: parts that the layers are divided into; tensor_parallel × pipeline_parallel
        is ``devices_per_engine``.
    weight_source: ``STATIC``, ``ACTOR`` or ``DCS``; None takes the role's default.
    served_model_name: the backend's name for the model; None takes the source.
    engine_options: the backend's own table.
    """

    source: str
    engine: str
    replicas: int = field(default=1, validator=_positive)
    max_replicas: int | None = field(default=None, validator=validators.optional(_positive))
    external_replicas: bool = False
    prefill_replicas: int = field(default=0, validator=_not_negative)
    devices_per_engine: int = field(default=1, validator=_positive)
    tensor_parallel: int | None = field(default=None, validator=validators.optional(_positive))
    pipeline_parallel: int = field(default=1, validator=_positive)
    weight_source: Literal["STATIC", "ACTOR", "DCS"] | None = None
    served_model_name: str | None = None
    engine_options: Options = field(factory=dict)


@frozen(kw_only=True)
class RoleConfig:
    """``[roles.<role>]``: the key is the name of a role plugin.

    models: one table a model, by its name; none for a role without engines.
    default_model: used when a request names none; implied when there is exactly one model.
    aliases: further names for models.
    route_keys: route key → model, e.g. one model for each data source.
    routing_policy: name of a routing-policy plugin.
    router_options: table of the router that the routing policy brings, if it brings one.
    devices: devices the role may use; None takes what its models need.
    max_in_flight_per_replica: requests that a gateway, or a client of the job, lets be at one replica at
        once; more wait in order, within their deadline. None: any number.
    max_queued_per_replica: requests that may wait at a gateway for one replica; more are answered 503.
    options: the role plugin's own table.
    """

    models: Mapping[str, ModelConfig] = field(factory=dict)
    default_model: str | None = None
    aliases: Mapping[str, str] = field(factory=dict)
    route_keys: Mapping[str, str] = field(factory=dict)
    routing_policy: str = "round_robin"
    router_options: Options = field(factory=dict)
    devices: int | None = field(default=None, validator=validators.optional(_positive))
    max_in_flight_per_replica: int | None = field(default=None, validator=validators.optional(_positive))
    max_queued_per_replica: int = field(default=1024, validator=_positive)
    options: Options = field(factory=dict)


@frozen(kw_only=True)
class TrainingConfig:
    """``[training.<name>]``: one role of the trainer, which rolecall places but does not start.

    devices: devices that it takes; may be left out with ``on``, which then takes as many as that role.
    offload: it gives its device memory up while roles that share its devices are awake. Needed where a
        mode lets it share them.
    on: training role whose devices and processes it uses, e.g. a reference model inside the actor.
    """

    devices: int | None = field(default=None, validator=validators.optional(_positive))
    offload: bool = False
    on: str | None = None


LoopUse = Literal["partial_rollout", "dynamic_batch", "streamed_scoring", "async_training"]


@frozen(kw_only=True)
class LoopSection:
    """``[loop]``: what the training loop around the job does, in its author's words.

    rolecall does not run the loop; it refuses layouts that can't carry it.

    uses: ``partial_rollout``: samples are cut off and continued in a later batch. ``dynamic_batch``: more are
        made, or not, by how those before were scored. ``streamed_scoring``: a sample is scored while others
        are made. ``async_training``: training goes on while samples are made.
    """

    uses: tuple[LoopUse, ...] = ()


@frozen(kw_only=True)
class RewardConfig:
    """``[rewards.<name>]``: one reward of a sample.

    With a single entry a sample's reward is that number; with several it is a dict by name.

    adapter: name of a reward-adapter plugin.
    on_error: ``fail_batch``, ``drop_sample`` or ``retry`` (at most ``retries`` times, then
        ``fail_batch``). There is no silent zero.
    retries: how often ``retry`` tries again.
    timeout_s: limit for scoring one sample.
    options: the adapter's own table.
    """

    adapter: str
    on_error: Literal["fail_batch", "drop_sample", "retry"] = "fail_batch"
    retries: int = field(default=2, validator=_not_negative)
    timeout_s: float = field(default=120.0, validator=_positive)
    options: Options = field(factory=dict)


@frozen(kw_only=True)
class SinkSection:
    """``[sink]``: where scored batches go.

    name: name of a batch-sink plugin.
    options: the sink's own table.
    """

    name: str
    options: Options = field(factory=dict)


@frozen(kw_only=True)
class BatchSection:
    """``[batch]``: the deferred batches that ``rolecall run`` makes.

    prompts: JSON-lines file, relative to the job file; each line has ``prompt`` (text), and
        optionally ``id``, ``answer``, ``data_source``, ``metadata``, ``image_data``, ``video_data`` and
        ``audio_data``. Also a ``.parquet`` file, a folder of them, or the folder of a saved Hugging Face
        dataset.
    columns: what the file calls the fields above, e.g. ``{prompt = "question", answer = "label.value"}``;
        those not named are not read. None: the fields have their own names.
    shuffle_seed: shuffles every turn through the file, each in its own way, which follows from this number.
        None: the file's order.
    batches: how many batches to make.
    prompts_per_batch: prompts in a batch.
    samples_per_prompt: samples of each prompt, a group.
    max_concurrency: requests in flight at once in any stage.
    staging_samples: capacity of the CPU staging area.
    commit_timeout_s: how long a consumer waits for a batch to be committed.
    sampling: sampling parameters of the generation stage, SGLang's names.
    """

    prompts: str
    columns: Mapping[str, str] | None = None
    shuffle_seed: int | None = None
    batches: int = field(default=1, validator=_positive)
    prompts_per_batch: int = field(default=8, validator=_positive)
    samples_per_prompt: int = field(default=1, validator=_positive)
    max_concurrency: int = field(default=16, validator=_positive)
    staging_samples: int = field(default=65_536, validator=_positive)
    commit_timeout_s: float = field(default=600.0, validator=_positive)
    sampling: Options = field(factory=dict)


@frozen(kw_only=True)
class JobConfig:
    """A whole job file.

    job: the job's name and who watches it.
    placement: which devices the job has and how the roles share them.
    roles: one table a role, named after its plugin.
    sink: where scored batches go.
    plugins: which installed plugins count.
    cluster: the Ray cluster that carries the job.
    gateway: the HTTP front of every role.
    lifecycle: deadlines of engine and lease operations.
    training: one table a role of the trainer, by a name of its own.
    loop: what the training loop does that some layouts can't carry.
    rewards: one table a reward, by name.
    batch: the deferred batches that ``rolecall run`` makes; without it there are none.
    """

    job: JobSection
    placement: PlacementSection
    roles: Mapping[str, RoleConfig] = field(validator=validators.min_len(1))
    sink: SinkSection
    plugins: PluginsSection = field(factory=PluginsSection)
    cluster: ClusterSection = field(factory=ClusterSection)
    gateway: GatewaySection = field(factory=GatewaySection)
    lifecycle: LifecycleSection = field(factory=LifecycleSection)
    training: Mapping[str, TrainingConfig] = field(factory=dict)
    loop: LoopSection = field(factory=LoopSection)
    rewards: Mapping[str, RewardConfig] = field(factory=dict)
    batch: BatchSection | None = None
