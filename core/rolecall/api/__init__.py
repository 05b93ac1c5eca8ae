"""The whole surface that plugins may use.

A plugin imports this module and nothing else of rolecall. Importing it imports no Ray, no
engine and no other plugin.
"""

from rolecall.batches.concurrency import gather_bounded
from rolecall.batches.rewards import reward_field, reward_stage, score_with_policy
from rolecall.batches.sample import Prompt, Sample, ScoreFields, Scores, text_sample
from rolecall.client.role_client import role_client
from rolecall.config.nested_adapters import make_reward_adapter
from rolecall.durable_files import flush_folder, remove_durably, remove_leftovers, write_durably
from rolecall.errors import (
    CapabilityError,
    DeadlineError,
    EngineError,
    EngineStartError,
    Fix,
    JobError,
    ModelUnavailableError,
    PayloadError,
    PluginError,
    Refusal,
    RequestError,
    RolecallError,
    RouterError,
    ScoringError,
    SinkError,
    UpstreamError,
    UpstreamStatusError,
)
from rolecall.events.event import Event
from rolecall.ids import BatchId, EngineId, ModelId, RoleName, engine_id
from rolecall.interfaces.batch_sink import BatchSink, Row, SinkContext
from rolecall.interfaces.engine_backend import (
    UPDATE_CAPABILITY,
    AttachedEngine,
    AttachesEngines,
    Capability,
    Disaggregation,
    Engine,
    EngineBackend,
    EngineFeatures,
    EngineHealth,
    EngineLaunch,
    FromDisk,
    FromGroup,
    FromTensors,
    MemoryReport,
    MemoryTag,
    WeightsGroup,
    WeightUpdate,
)
from rolecall.interfaces.native_payload import check_native_payload
from rolecall.interfaces.observer import Observer
from rolecall.interfaces.placement_mode import Arrangement, PlacementMode
from rolecall.interfaces.reward_adapter import RewardAdapter, ScoringClient
from rolecall.interfaces.role import (
    Endpoint,
    Generate,
    GenerationContext,
    NamedReward,
    PayloadShape,
    Progress,
    Role,
    Stage,
    StageContext,
    StageRequest,
    UpstreamCall,
    WeightSource,
)
from rolecall.interfaces.router import Router, RouterBackend, RouterHealth, RouterLaunch, RouterWorker
from rolecall.interfaces.routing_policy import Candidate, Load, Need, RoutingPolicy, RoutingRequest
from rolecall.interfaces.scale_endpoints import scale_endpoints
from rolecall.interfaces.token_ids import TokenIds
from rolecall.job.asked import AskedJob, ask_job
from rolecall.placement.enough import enough_devices
from rolecall.placement.layout import RoleSlice, TrainingSlice, place_role, place_training, stop_of_role
from rolecall.placement.nodes import NodeRun, Nodes
from rolecall.placement.plan import (
    ModelDemand,
    Phase,
    PlacementJob,
    PlacementPlan,
    Pool,
    ReplicaPlacement,
    RoleDemand,
    TrainingDemand,
    TrainingPlacement,
)
from rolecall.plugins.hookspecs import ROLECALL_API, hookimpl
from rolecall.processes.bound_exec import die_with_parent
from rolecall.processes.child_process import ChildProcess
from rolecall.routing.rendezvous import homes, rendezvous
from rolecall.verdicts.json_field import JsonVerdict
from rolecall.verdicts.number import NumberVerdict
from rolecall.verdicts.word import WordVerdict
from rolecall.verdicts.yes_no import YesNoVerdict

__all__ = [
    "ROLECALL_API",
    "UPDATE_CAPABILITY",
    "Arrangement",
    "AskedJob",
    "AttachedEngine",
    "AttachesEngines",
    "BatchId",
    "BatchSink",
    "Candidate",
    "Capability",
    "CapabilityError",
    "ChildProcess",
    "DeadlineError",
    "Disaggregation",
    "Endpoint",
    "Engine",
    "EngineBackend",
    "EngineError",
    "EngineFeatures",
    "EngineHealth",
    "EngineId",
    "EngineLaunch",
    "EngineStartError",
    "Event",
    "Fix",
    "FromDisk",
    "FromGroup",
    "FromTensors",
    "Generate",
    "GenerationContext",
    "JobError",
    "JsonVerdict",
    "Load",
    "MemoryReport",
    "MemoryTag",
    "ModelDemand",
    "ModelId",
    "ModelUnavailableError",
    "NamedReward",
    "Need",
    "NodeRun",
    "Nodes",
    "NumberVerdict",
    "Observer",
    "PayloadError",
    "PayloadShape",
    "Phase",
    "PlacementJob",
    "PlacementMode",
    "PlacementPlan",
    "PluginError",
    "Pool",
    "Progress",
    "Prompt",
    "Refusal",
    "ReplicaPlacement",
    "RequestError",
    "RewardAdapter",
    "Role",
    "RoleDemand",
    "RoleName",
    "RoleSlice",
    "RolecallError",
    "Router",
    "RouterBackend",
    "RouterError",
    "RouterHealth",
    "RouterLaunch",
    "RouterWorker",
    "RoutingPolicy",
    "RoutingRequest",
    "Row",
    "Sample",
    "ScoreFields",
    "Scores",
    "ScoringClient",
    "ScoringError",
    "SinkContext",
    "SinkError",
    "Stage",
    "StageContext",
    "StageRequest",
    "TokenIds",
    "TrainingDemand",
    "TrainingPlacement",
    "TrainingSlice",
    "UpstreamCall",
    "UpstreamError",
    "UpstreamStatusError",
    "WeightSource",
    "WeightUpdate",
    "WeightsGroup",
    "WordVerdict",
    "YesNoVerdict",
    "ask_job",
    "check_native_payload",
    "die_with_parent",
    "engine_id",
    "enough_devices",
    "flush_folder",
    "gather_bounded",
    "homes",
    "hookimpl",
    "make_reward_adapter",
    "place_role",
    "place_training",
    "remove_durably",
    "remove_leftovers",
    "rendezvous",
    "reward_field",
    "reward_stage",
    "role_client",
    "scale_endpoints",
    "score_with_policy",
    "stop_of_role",
    "text_sample",
    "write_durably",
]
