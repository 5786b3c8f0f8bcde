//! The standard hooks, named like TensorFlow's.

mod checkpoint_saver;
mod final_ops;
mod logging;
mod nan_guard;
mod of_chief;
mod profiler;
mod step_counter;
mod stop_at_step;
mod summary_saver;

pub use checkpoint_saver::CheckpointSaver;
pub use final_ops::FinalOps;
pub use logging::LoggingTensors;
pub use nan_guard::NanGuard;
pub use of_chief::OfChief;
pub use profiler::Profiler;
pub use step_counter::StepCounter;
pub use stop_at_step::StopAtStep;
pub use summary_saver::SummarySaver;
