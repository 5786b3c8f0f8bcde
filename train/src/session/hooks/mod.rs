//! The standard hooks, named like TensorFlow's.

mod checkpoint_saver;
mod chief_only;
mod final_ops;
mod logging;
mod nan_guard;
mod profiler;
mod step_counter;
mod stop_at_step;
mod summary_saver;

pub use checkpoint_saver::CheckpointSaver;
pub use chief_only::ChiefOnly;
pub use final_ops::FinalOps;
pub use logging::LoggingTensors;
pub use nan_guard::NanGuard;
pub use profiler::Profiler;
pub use step_counter::StepCounter;
pub use stop_at_step::StopAtStep;
pub use summary_saver::SummarySaver;
