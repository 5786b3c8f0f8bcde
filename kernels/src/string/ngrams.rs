//! N-grams of ragged rows of strings.

use crate::plan::shape::integers;
use crate::ragged::splits::check_whole;
use bytes::{Bytes, BytesMut};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::tensor::memory_limit;
use graph::{Code, Shape, Tensor};

/// The attributes of StringNGrams.
struct NGrams {
    separator: Bytes,
    widths: Vec<i64>,
    left_pad: Bytes,
    right_pad: Bytes,
    /// The number of paddings at each end of a row; if negative, as many as the width of the n-grams permits.
    pad_width: i64,
    /// Set if a row that is too short for all widths becomes one n-gram.
    keeps_short: bool,
}

/// Makes the kernel of StringNGrams, which joins each run of strings of a row, padded at both ends, to one string.
pub(super) fn ngrams(init: &KernelInit<'_>) -> Result<Kernel> {
    let of = NGrams {
        separator: init.attr("separator")?,
        widths: init.attr("ngram_widths")?,
        left_pad: init.attr("left_pad")?,
        right_pad: init.attr("right_pad")?,
        pad_width: i64::from(init.attr::<i64>("pad_width")? as i32),
        keeps_short: init.attr("preserve_short_sequences")?,
    };
    if of.widths.iter().any(|&width| width <= 0) {
        invalid!("ngram_widths must contain positive values");
    }
    if of.widths.iter().any(|&width| width > i64::from(i32::MAX)) {
        invalid!("ngram_widths must be below 2^31");
    }
    let splits_type = init.output_type(1);
    Kernel::sync(move |ctx| {
        let (data, splits) = (ctx.input(0)?, ctx.input(1)?);
        let (strings, given) = (data.as_strings()?, splits.to_i64s()?);
        // Without splits there are no rows, and TensorFlow does not check the data.
        if !given.is_empty() {
            check_whole(&given, strings.len())?;
        }
        let shape = splits.shape().clone();
        let (ngrams, ends) = if strings.is_empty() || given.is_empty() {
            // Like in TensorFlow, the output has the shape of the data.
            (Tensor::strings(vec![Bytes::new(); strings.len()], data.shape().clone())?, vec![0; given.len()])
        } else {
            let (made, ends) = of.rows(ctx, strings, &given)?;
            let count = Shape::new(&[made.len()])?;
            (Tensor::strings(made, count)?, ends)
        };
        ctx.set_output(0, ngrams);
        ctx.set_output(1, integers(splits_type, &ends)?.reshaped(shape)?);
        Ok(())
    })
}

impl NGrams {
    /// Returns the n-grams of all rows, and their row splits.
    fn rows(
        &self,
        ctx: &KernelContext<'_>,
        strings: &[Bytes],
        splits: &[i64],
    ) -> Result<(Vec<Bytes>, Vec<i64>)> {
        let (mut made, mut ends, mut budget) = (Vec::new(), vec![0], memory_limit());
        for pair in splits.windows(2) {
            ctx.check_cancelled()?;
            let row = &strings[pair[0] as usize..pair[1] as usize];
            let length = row.len() as i64;
            let before = made.len();
            for &width in &self.widths {
                let padding = self.padding(width);
                if padding > i64::from(i32::MAX) / 2 - length {
                    invalid!("Pad width could lead to integer overflow, got pad_width = {padding}");
                }
                let count = (length + 2 * padding - width + 1).max(0);
                self.append(row, width, count, &mut made, &mut budget)?;
            }
            if self.keeps_short && made.len() == before && length > 0 {
                if self.pad_width < 0 {
                    invalid!(
                        "Pad width should be >= 0 when preserve_short_sequences is True and ngram_widths are not \
                         provided, got {}",
                        self.pad_width
                    );
                }
                let width = length + 2 * self.pad_width;
                self.append(row, width, 1, &mut made, &mut budget)?;
            }
            ends.push(made.len() as i64);
        }
        Ok((made, ends))
    }

    /// Returns the number of paddings at each end of a row, for n-grams of `width` strings.
    fn padding(&self, width: i64) -> i64 {
        if self.pad_width < 0 { width - 1 } else { self.pad_width.min(width - 1) }
    }

    /// Appends the first `count` n-grams of `width` strings. `budget` is the number of bytes that n-grams may still
    /// take.
    fn append(
        &self,
        row: &[Bytes],
        width: i64,
        count: i64,
        made: &mut Vec<Bytes>,
        budget: &mut u64,
    ) -> Result<()> {
        let padding = self.padding(width);
        for at in 0..count {
            let left = (padding - at).clamp(0, width) as usize;
            let right = (padding - (count - at - 1)).max(0) as usize;
            let inner = (width as usize).saturating_sub(left + right);
            let first = if left > 0 { 0 } else { (at - padding) as usize };
            let tokens = row.get(first..first + inner).unwrap_or_default();
            let parts = left + inner + right;
            let size = (self.left_pad.len() as u64).saturating_mul(left as u64)
                + (self.right_pad.len() as u64).saturating_mul(right as u64)
                + tokens.iter().map(|token| token.len() as u64).sum::<u64>()
                + (self.separator.len() as u64).saturating_mul(parts as u64);
            let Some(left_over) = budget.checked_sub(size.saturating_add(size_of::<Bytes>() as u64)) else {
                return Err(Error::new(
                    Code::ResourceExhausted,
                    format!("OOM for n-grams of {width} strings"),
                ));
            };
            *budget = left_over;
            let mut text = BytesMut::with_capacity(size as usize);
            let lefts = std::iter::repeat_n(&self.left_pad, left);
            let rights = std::iter::repeat_n(&self.right_pad, right);
            for (i, part) in lefts.chain(tokens).chain(rights).enumerate() {
                if i > 0 {
                    text.extend_from_slice(&self.separator);
                }
                text.extend_from_slice(part);
            }
            made.push(text.freeze());
        }
        Ok(())
    }
}
