//! The text format of graphs, one node per line, for people, tests and tools. Parsing the printed text gives an equal
//! graph.
//!
//! ```text
//! %versions producer=21 min_consumer=12
//! w = Const[dtype=float, value=float<2,2>{1.0, 0.0, ...}] @"/job:ps/task:0"
//! y = MatMul[T=float, transpose_b=true](x, w:0, ^init) @"/job:worker"
//! ```
//!
//! A line is `name = Op[attributes](inputs) @"device" %opaque`; all parts after the op are optional. Names with
//! characters other than letters, digits and `_./\->` are quoted strings. Nodes may be in any order; `#` starts a
//! comment. Lines that begin with `%` are directives that hold the settings of the whole graph.
//! The forms of attributes are
//!
//! | kind | form |
//! |---|---|
//! | string | `"text"`, with `\n`, `\t`, `\"`, `\\` and `\x00` for other bytes |
//! | int, float, bool | `3`, `3.0` (or `1e-5`, `inf`, `nan`), `true` |
//! | type | `float` |
//! | shape | `<2,?>`, of unknown rank `<*>`, of a scalar `<>` |
//! | tensor | `float<3>{1.0, 2.0, ...}`, where `...` repeats the last element; hex bits for types without text |
//! | function | `@name[T=float]`; `$T` stands for attribute `T` of the enclosing function |
//! | list | `[1, 2]` |

mod cursor;
mod function;
mod parse;
mod print;

use crate::error::Result;
use crate::graph::Graph;

impl Graph {
    /// Returns the graph as text, with the nodes in their order.
    pub fn to_text(&self) -> String {
        print::graph(self)
    }

    /// Parses a graph from text.
    ///
    /// # Errors
    /// `Text` with the line number for syntax errors, unknown ops and duplicate names; the errors of imports, with
    /// the node's name, for nodes that do not fit together.
    pub fn from_text(text: &str) -> Result<Graph> {
        parse::graph(text)
    }
}

/// Returns whether a name can be written without quotes.
fn is_plain(name: &str) -> bool {
    name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'))
        && name.bytes().all(is_name_byte)
}

fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'\\' | b'-' | b'>')
}
