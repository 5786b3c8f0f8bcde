//! The choice of how a step starts: on the calling thread, as an inline task, or on a pool thread.

/// The choice of the thread that starts a step, and of the nodes that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A pool thread starts the step of a partition with control flow, which may last arbitrarily long.
    FramesOnPool,
    /// The calling thread runs the whole step.
    OnCaller,
    /// The calling thread runs the step as an inline task.
    InlineTask,
    /// The calling thread starts the receives of the step; pool threads run the rest.
    ReceivesOnCaller,
    /// A pool thread starts the step.
    OnPool,
}

/// The facts about a partition and the calling thread that decide how a step starts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StartFacts {
    /// True if the partition has branches or loops.
    pub(super) has_control_flow: bool,
    /// True if a step always takes less time than another thread takes to start.
    pub(super) is_brief: bool,
    /// True if recent steps took less time than another thread takes to start.
    pub(super) is_light: bool,
    /// True if a step starts with a few receives and nothing else.
    pub(super) starts_with_receives: bool,
    /// True if the caller is a compute thread. Such a thread starts no step itself, because kernels may be waiting on
    /// its stack.
    pub(super) is_compute_thread: bool,
    /// True if the calling thread accepts inline tasks.
    pub(super) runs_inline_tasks: bool,
}

impl Start {
    /// Chooses how a step starts, given the facts about its partition and the calling thread.
    pub(super) fn choose(facts: StartFacts) -> Start {
        match facts {
            StartFacts { has_control_flow: true, .. } => Start::FramesOnPool,
            StartFacts { is_brief: true, is_compute_thread: false, .. } => Start::OnCaller,
            StartFacts { is_light: true, runs_inline_tasks: true, .. } => Start::InlineTask,
            StartFacts { starts_with_receives: true, is_compute_thread: false, .. } => {
                Start::ReceivesOnCaller
            }
            _ => Start::OnPool,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: StartFacts = StartFacts {
        has_control_flow: false,
        is_brief: false,
        is_light: false,
        starts_with_receives: false,
        is_compute_thread: false,
        runs_inline_tasks: false,
    };

    #[test]
    fn steps_with_control_flow_start_on_the_pool() {
        let all = StartFacts {
            has_control_flow: true,
            is_brief: true,
            is_light: true,
            starts_with_receives: true,
            is_compute_thread: false,
            runs_inline_tasks: true,
        };
        assert_eq!(Start::choose(all), Start::FramesOnPool);
        assert_eq!(Start::choose(StartFacts { has_control_flow: true, ..NONE }), Start::FramesOnPool);
    }

    #[test]
    fn brief_steps_run_on_the_caller_except_on_compute_threads() {
        let brief = StartFacts { is_brief: true, ..NONE };
        assert_eq!(Start::choose(brief), Start::OnCaller);
        let inline = StartFacts { is_light: true, runs_inline_tasks: true, ..brief };
        assert_eq!(Start::choose(inline), Start::OnCaller);
        assert_eq!(Start::choose(StartFacts { is_compute_thread: true, ..brief }), Start::OnPool);
    }

    #[test]
    fn light_steps_are_inline_tasks_of_threads_that_run_such_tasks() {
        let light = StartFacts { is_light: true, ..NONE };
        assert_eq!(Start::choose(light), Start::OnPool);
        let receives = StartFacts { starts_with_receives: true, ..light };
        assert_eq!(Start::choose(receives), Start::ReceivesOnCaller);
        for facts in [light, receives] {
            assert_eq!(Start::choose(StartFacts { runs_inline_tasks: true, ..facts }), Start::InlineTask);
        }
    }

    #[test]
    fn receives_start_on_the_caller_except_on_compute_threads() {
        let receives = StartFacts { starts_with_receives: true, ..NONE };
        assert_eq!(Start::choose(receives), Start::ReceivesOnCaller);
        let inline = StartFacts { runs_inline_tasks: true, ..receives };
        assert_eq!(Start::choose(inline), Start::ReceivesOnCaller);
        assert_eq!(Start::choose(StartFacts { is_compute_thread: true, ..receives }), Start::OnPool);
        assert_eq!(Start::choose(NONE), Start::OnPool);
    }
}
