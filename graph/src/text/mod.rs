//! The textual form of a graph: a node a line, for people, tests and tools. What is printed parses to the same
//! graph.
//!
//! ```text
//! %versions producer=21 min_consumer=12
//! w = Const[dtype=float, value=float<2,2>{1.0, 0.0, ...}] @"/job:ps/task:0"
//! y = MatMul[T=float, transpose_b=true](x, w:0, ^init) @"/job:worker"
//! ```
//!
//! A line is `name = Op[attributes](inputs) @"device" %opaque`, where all that follows the op may be absent.
//! Names that are not plain are strings. Nodes may stand in any order; `#` starts a comment. Directives `%`
//! carry what belongs to the whole graph. Attributes are
//!
//! | kind | form |
//! |---|---|
//! | string | `"text"`, with `\n`, `\t`, `\"`, `\\` and `\x00` for other bytes |
//! | int, float, bool | `3`, `3.0` (or `1e-5`, `inf`, `nan`), `true` |
//! | type | `float` |
//! | shape | `<2,?>`, of unknown rank `<*>`, of a scalar `<>` |
//! | tensor | `float<3>{1.0, 2.0, ...}`, where `...` repeats the last element; bits in hex where a type has no text |
//! | function | `@name[T=float]`; a placeholder for one's attribute is `$T` |
//! | list | `[1, 2]` |

mod cursor;
mod function;
mod parse;
mod print;

use crate::error::Result;
use crate::graph::Graph;

impl Graph {
    /// The graph as text, nodes in their order.
    pub fn to_text(&self) -> String {
        print::graph(self)
    }

    /// Reads a graph from its textual form.
    ///
    /// # Errors
    /// `Text` with the line's number for what is no sentence of the language, unknown ops and names that are
    /// taken; for nodes that do not fit together the errors of imports, with the node's name.
    pub fn from_text(text: &str) -> Result<Graph> {
        parse::graph(text)
    }
}

/// Whether a name can stand without quotes.
fn is_plain(name: &str) -> bool {
    name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'))
        && name.bytes().all(is_name_byte)
}

fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'\\' | b'-' | b'>')
}
