//! The note about a collective in the trace of its step.

use crate::collective::schedule::{ForeignKey, Member, Schedule};

/// Describes a member's collective: its bytes, its algorithm and the number of members, such as `16384 bytes, exchange in
/// 2 phases, 4 members`.
pub(super) fn span(schedule: &Schedule, member: &Member, is_foreign: bool) -> String {
    let Member { count, width, size, .. } = *member;
    let phases = schedule.phases.len();
    let algorithm = match schedule.phases.first().map(|phase| phase.foreign_key) {
        Some(ForeignKey::Ring { .. }) if is_foreign => "ring",
        Some(ForeignKey::Tree) if is_foreign => "tree",
        _ => "exchange",
    };
    let plural = if phases == 1 { "" } else { "s" };
    format!("{} bytes, {algorithm} in {phases} phase{plural}, {size} members", count * width)
}
