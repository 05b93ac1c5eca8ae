"""The whole surface that plugins may use.

A plugin imports this module and nothing else of rolecall. Importing it imports no Ray, no
engine and no other plugin.
"""

from rolecall.batches.concurrency import gather_bounded
from rolecall.batches.rewards import reward_field, reward_stage, score_with_policy
from rolecall.batches.sample import Prompt, Sample, ScoreFields, Scores
from rolecall.durable_files import flush_folder, remove_durably, remove_leftovers, write_durably
from rolecall.errors import (
    CapabilityError,
    DeadlineError,
    EngineError,
    EngineStartError,
    Fix,
    ModelUnavailableError,
    PayloadError,
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
    Progress,
    Role,
    Stage,
    StageContext,
    StageRequest,
    UpstreamCall,
    WeightSource,
)
from rolecall.interfaces.router import Router, RouterBackend, RouterHealth, RouterLaunch, RouterWorker
from rolecall.interfaces.routing_policy import Candidate, Need, RoutingPolicy, RoutingRequest
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
from rolecall.routing.rendezvous import rendezvous

__all__ = [
    "ROLECALL_API",
    "UPDATE_CAPABILITY",
    "Arrangement",
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
    "MemoryReport",
    "MemoryTag",
    "ModelDemand",
    "ModelId",
    "ModelUnavailableError",
    "NamedReward",
    "Need",
    "NodeRun",
    "Nodes",
    "Observer",
    "PayloadError",
    "Phase",
    "PlacementJob",
    "PlacementMode",
    "PlacementPlan",
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
    "TrainingDemand",
    "TrainingPlacement",
    "TrainingSlice",
    "UpstreamCall",
    "UpstreamError",
    "UpstreamStatusError",
    "WeightSource",
    "WeightUpdate",
    "WeightsGroup",
    "check_native_payload",
    "die_with_parent",
    "engine_id",
    "enough_devices",
    "flush_folder",
    "gather_bounded",
    "hookimpl",
    "place_role",
    "place_training",
    "remove_durably",
    "remove_leftovers",
    "rendezvous",
    "reward_field",
    "reward_stage",
    "score_with_policy",
    "stop_of_role",
    "write_durably",
]
