# To be sourced by a launch script of slime, and given to train.py as "${ROLECALL_ARGS[@]}".
ROLECALL_ARGS=(
  --custom-config-path examples/loops/slime/rolecall.yaml
  --custom-rm-path rolecall_loops.slime.reward
  # Only where the job's policy makes the samples, too; without it slime's own engines do:
  --rollout-function-path rolecall_loops.slime.generate_rollout
  --apply-chat-template
  --rollout-top-p 1.0
)
