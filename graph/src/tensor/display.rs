//! Text form of tensors in messages: the first elements in row-major order, in one pair of brackets; scalars without
//! brackets.

use super::Tensor;
use crate::dtype::{Bool8, DType};
use half::{bf16, f16};
use std::fmt::{self, Write};

/// The largest number of elements that are shown; `…` stands for the remaining elements.
const SHOWN: usize = 12;

impl Tensor {
    /// Returns element `i`, in row-major order, as text.
    pub fn element_text(&self, i: usize) -> String {
        macro_rules! text {
            ($($d:ident: $t:ty),*) => {
                match self.dtype() {
                    $(DType::$d => self.values::<$t>().ok().and_then(|v| v.get(i)).map(|v| v.to_string()),)*
                    DType::Bool => self.values::<Bool8>().ok().and_then(|v| v.get(i)).map(|v| v.get().to_string()),
                    DType::String => self.as_strings().ok().and_then(|v| v.get(i))
                        .map(|v| String::from_utf8_lossy(v).into_owned()),
                    _ => None,
                }
            };
        }
        text!(Float: f32, Double: f64, Half: f16, BFloat16: bf16, Int8: i8, Int16: i16, Int32: i32, Int64: i64,
              UInt8: u8, UInt16: u16, UInt32: u32, UInt64: u64)
        .unwrap_or_else(|| "?".to_owned())
    }

    /// Returns the first `limit` elements as text, separated by spaces and without brackets, followed by `...` if
    /// there are more. A negative limit shows all elements.
    pub fn summarize(&self, limit: i64) -> String {
        let total = self.num_elements();
        let shown = usize::try_from(limit).map_or(total, |l| l.min(total));
        let mut out = String::new();
        for i in 0..shown {
            if i > 0 {
                out.push(' ');
            }
            out.push_str(&self.element_text(i));
        }
        if shown < total {
            out.push_str("...");
        }
        out
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.num_elements().min(SHOWN);
        if self.shape().rank() == 0 {
            return f.write_str(&self.element_text(0));
        }
        f.write_char('[')?;
        for i in 0..shown {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, self.element_text(i))?;
        }
        if shown < self.num_elements() {
            f.write_str(", …")?;
        }
        f.write_char(']')
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor<{}{}>({self})", self.dtype(), self.shape())
    }
}
