//! The names within a function.

use crate::function::Register;
use rustc_hash::FxHashMap;

/// The object that a name in a function refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symbol {
    Register(Register),
    /// The offset of a parameter in the function's frame.
    Parameter(usize),
    /// The offset of a variable in local memory.
    Local(u64),
    /// The offset of a variable in shared memory.
    Shared(u64),
    /// The address of a global variable of the module.
    Global(u64),
}

/// Nested scopes of names; a name in an inner scope hides the same name in outer scopes.
#[derive(Debug, Default)]
pub(crate) struct Scopes<'a>(Vec<Scope<'a>>);

/// The names declared in one pair of braces.
#[derive(Debug, Default)]
struct Scope<'a> {
    names: FxHashMap<&'a str, Symbol>,
    /// Register declarations by prefix, such as `%r<246>`, which declares `%r0` to `%r245`: the first register,
    /// and the number of registers.
    rows: FxHashMap<&'a str, (Register, u32)>,
}

impl<'a> Scopes<'a> {
    /// Opens a scope.
    pub(crate) fn open(&mut self) {
        self.0.push(Scope::default());
    }

    /// Closes the innermost scope.
    pub(crate) fn close(&mut self) {
        self.0.pop();
    }

    /// Returns the number of open scopes.
    pub(crate) fn depth(&self) -> usize {
        self.0.len()
    }

    /// Adds a name to the innermost scope.
    pub(crate) fn name(&mut self, name: &'a str, symbol: Symbol) {
        if let Some(scope) = self.0.last_mut() {
            scope.names.insert(name, symbol);
        }
    }

    /// Adds `count` registers, whose names are `prefix` and a number, to the innermost scope; the first register
    /// has index `first`.
    pub(crate) fn row(&mut self, prefix: &'a str, first: Register, count: u32) {
        if let Some(scope) = self.0.last_mut() {
            scope.rows.insert(prefix, (first, count));
        }
    }

    /// Returns the object that a name refers to, searched from the innermost scope outwards.
    pub(crate) fn find(&self, name: &str) -> Option<Symbol> {
        self.0.iter().rev().find_map(|scope| scope.find(name))
    }
}

impl Scope<'_> {
    fn find(&self, name: &str) -> Option<Symbol> {
        let in_row = || {
            let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let &(first, count) = self.rows.get(prefix)?;
            let number: u32 = name[prefix.len()..].parse().ok()?;
            (number < count).then(|| Symbol::Register(first + number))
        };
        self.names.get(name).copied().or_else(in_row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_names_shadow_outer_names() {
        let mut scopes = Scopes::default();
        scopes.open();
        scopes.row("%r", 10, 3);
        scopes.name("%SP", Symbol::Register(7));
        scopes.open();
        scopes.name("%r1", Symbol::Register(99));
        assert_eq!(scopes.find("%r1"), Some(Symbol::Register(99)));
        assert_eq!(scopes.find("%r2"), Some(Symbol::Register(12)));
        assert_eq!(scopes.find("%r3"), None);
        scopes.close();
        assert_eq!(scopes.find("%r1"), Some(Symbol::Register(11)));
        assert_eq!(scopes.find("%SP"), Some(Symbol::Register(7)));
        assert_eq!(scopes.depth(), 1);
    }
}
