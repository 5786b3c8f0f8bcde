//! What names stand for within a function.

use crate::function::Register;
use rustc_hash::FxHashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Register(Register),
    /// A place in the function's frame.
    Parameter(usize),
    /// Offsets in local and shared memory.
    Local(u64),
    Shared(u64),
    /// The address of what the module holds.
    Global(u64),
}

/// Names, those of inner blocks before those of outer ones.
#[derive(Debug, Default)]
pub(crate) struct Scopes<'a>(Vec<Scope<'a>>);

#[derive(Debug, Default)]
struct Scope<'a> {
    names: FxHashMap<&'a str, Named>,
    /// `%r<246>`: registers `%r0` to `%r245`, whose first is this one.
    rows: FxHashMap<&'a str, (Register, u32)>,
}

impl<'a> Scopes<'a> {
    pub(crate) fn open(&mut self) {
        self.0.push(Scope::default());
    }

    pub(crate) fn close(&mut self) {
        self.0.pop();
    }

    /// How many are open.
    pub(crate) fn depth(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn name(&mut self, name: &'a str, named: Named) {
        if let Some(scope) = self.0.last_mut() {
            scope.names.insert(name, named);
        }
    }

    pub(crate) fn row(&mut self, prefix: &'a str, first: Register, count: u32) {
        if let Some(scope) = self.0.last_mut() {
            scope.rows.insert(prefix, (first, count));
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<Named> {
        self.0.iter().rev().find_map(|scope| scope.find(name))
    }
}

impl Scope<'_> {
    fn find(&self, name: &str) -> Option<Named> {
        let in_row = || {
            let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let &(first, count) = self.rows.get(prefix)?;
            let number: u32 = name[prefix.len()..].parse().ok()?;
            (number < count).then(|| Named::Register(first + number))
        };
        self.names.get(name).copied().or_else(in_row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_names_come_before_outer_ones() {
        let mut scopes = Scopes::default();
        scopes.open();
        scopes.row("%r", 10, 3);
        scopes.name("%SP", Named::Register(7));
        scopes.open();
        scopes.name("%r1", Named::Register(99));
        assert_eq!(scopes.find("%r1"), Some(Named::Register(99)));
        assert_eq!(scopes.find("%r2"), Some(Named::Register(12)));
        assert_eq!(scopes.find("%r3"), None);
        scopes.close();
        assert_eq!(scopes.find("%r1"), Some(Named::Register(11)));
        assert_eq!(scopes.find("%SP"), Some(Named::Register(7)));
        assert_eq!(scopes.depth(), 1);
    }
}
