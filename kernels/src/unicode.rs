//! Kernels of text: strings in many encodings are decoded to code points, which are encoded in UTF-8, UTF-16 or UTF-32.

mod encoding;
mod multibyte;
mod script;

use crate::plan::shape::integers;
use crate::ragged::splits::check_whole;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use encoding::{Decoder, Encoding, Unit};
use graph::{DType, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("UnicodeDecode", &[], decode),
    KernelDef::of("UnicodeDecodeWithOffsets", &[], decode),
    KernelDef::of("UnicodeEncode", &[], encode),
    KernelDef::of("UnicodeScript", &[], |_| Kernel::sync(scripts)),
    KernelDef::of("UnicodeTranscode", &[], transcode),
];

/// The treatment of malformed input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnError {
    Fail,
    Drop,
    /// Malformed input becomes the replacement character.
    Replace,
}

/// The treatment of malformed input, and of control characters.
#[derive(Clone, Copy, Debug)]
struct Policy {
    on_error: OnError,
    /// The code point that replaces malformed input.
    replacement: u32,
    /// Set if the characters below U+0020 are treated as malformed.
    includes_controls: bool,
}

impl Policy {
    fn of(init: &KernelInit<'_>) -> Result<Policy> {
        let code = init.attr::<i64>("replacement_char")?;
        let Some(code) = u32::try_from(code).ok().filter(|&code| code <= LAST) else {
            invalid!("replacement_char out of unicode codepoint range: {code}");
        };
        let on_error = match &*init.attr::<String>("errors")? {
            "strict" => OnError::Fail,
            "ignore" => OnError::Drop,
            _ => OnError::Replace,
        };
        let includes_controls = match init.node.op.attr_spec("replace_control_characters") {
            Some(_) => init.attr::<bool>("replace_control_characters")?,
            None => false,
        };
        Ok(Policy { on_error, replacement: code, includes_controls })
    }

    /// Returns the policy for a unit of the input, in ops that output code points. In the mode `strict`, these ops fail
    /// only for malformed input; control characters are kept, or replaced if the node requests that.
    fn for_controls(self, unit: Unit) -> Policy {
        match self.on_error {
            OnError::Fail if !unit.is_malformed => Policy { on_error: OnError::Replace, ..self },
            _ => self,
        }
    }

    /// Returns the code point for a unit of the input, or `None` if the unit is dropped.
    fn apply(self, unit: Unit) -> Result<Option<u32>> {
        if !(unit.is_malformed || self.includes_controls && unit.code < 0x20) {
            return Ok(Some(unit.code));
        }
        match self.on_error {
            OnError::Fail => invalid!("Invalid formatting on input string"),
            OnError::Drop => Ok(None),
            OnError::Replace => Ok(Some(self.replacement)),
        }
    }
}

/// The last code point of Unicode.
const LAST: u32 = 0x10_ffff;

fn input_encoding(init: &KernelInit<'_>) -> Result<Encoding> {
    let name = init.attr::<String>("input_encoding")?;
    match Encoding::named(&name) {
        Some(encoding) => Ok(encoding),
        None => invalid!(
            "Could not create converter for input encoding: {name}; encodings with shift states, such as ISO-2022-JP, \
             are not supported"
        ),
    }
}

/// Makes the kernel that outputs the row splits of the strings' characters, their code points and, if the op has a third
/// output, the offset in bytes of each character in its string.
fn decode(init: &KernelInit<'_>) -> Result<Kernel> {
    let (policy, encoding) = (Policy::of(init)?, input_encoding(init)?);
    let splits_type = init.output_type(0);
    Kernel::sync(move |ctx| {
        let strings = ctx.input(0)?.as_strings()?;
        let mut decoder = Decoder::new(encoding);
        let mut splits = Vec::with_capacity(strings.len() + 1);
        splits.push(0);
        let (mut codes, mut offsets) = (Vec::new(), Vec::new());
        for string in strings {
            let (mut at, mut failure) = (0, None);
            decoder.decode(string, |unit| {
                match policy.for_controls(unit).apply(unit) {
                    Ok(Some(code)) => {
                        codes.push(code.cast_signed());
                        offsets.push(at);
                    }
                    Ok(None) => {}
                    Err(e) => failure = failure.take().or(Some(e)),
                }
                at += unit.length as i64;
            });
            if let Some(e) = failure {
                return Err(e);
            }
            splits.push(codes.len() as i64);
        }
        ctx.set_output(0, integers(splits_type, &splits)?);
        ctx.set_output(1, Tensor::vector(&codes)?);
        if ctx.num_outputs() > 2 {
            ctx.set_output(2, integers(DType::Int64, &offsets)?);
        }
        Ok(())
    })
}

/// Makes the kernel that outputs each string of the input in another encoding.
fn transcode(init: &KernelInit<'_>) -> Result<Kernel> {
    let (policy, encoding, form) = (Policy::of(init)?, input_encoding(init)?, Form::of(init)?);
    Kernel::sync(move |ctx| {
        let input = ctx.input(0)?;
        let mut decoder = Decoder::new(encoding);
        let mut strings = Vec::with_capacity(input.num_elements());
        for string in input.as_strings()? {
            let (mut text, mut failure) = (Vec::with_capacity(string.len()), None);
            decoder.decode(string, |unit| match policy.apply(unit) {
                Ok(Some(code)) => push(&mut text, code),
                Ok(None) => {}
                Err(e) => failure = failure.take().or(Some(e)),
            });
            if let Some(e) = failure {
                return Err(e);
            }
            strings.push(form.encode(&text));
        }
        let out = Tensor::strings(strings, input.shape().clone())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel that outputs a string for each row of code points.
fn encode(init: &KernelInit<'_>) -> Result<Kernel> {
    let (policy, form) = (Policy::of(init)?, Form::of(init)?);
    Kernel::sync(move |ctx| {
        let (codes, splits) = (ctx.input(0)?, ctx.input(1)?);
        if codes.shape().rank() != 1 || splits.shape().rank() != 1 {
            invalid!("Both the input_tensor and input_splits should be of rank 1.");
        }
        let (codes, splits) = (codes.values::<i32>()?, splits.to_i64s()?);
        check_whole(&splits, codes.len())?;
        let mut strings = Vec::with_capacity(splits.len() - 1);
        for row in splits.windows(2) {
            let mut text = Vec::with_capacity((row[1] - row[0]) as usize);
            for &code in &codes[row[0] as usize..row[1] as usize] {
                let code = code.cast_unsigned();
                let is_malformed = char::from_u32(code).is_none();
                if is_malformed && policy.on_error == OnError::Fail {
                    invalid!("Code point is out of range for Unicode, or is a surrogate.");
                }
                if let Some(code) = policy.apply(Unit { code, length: 1, is_malformed })? {
                    push(&mut text, code);
                }
            }
            strings.push(form.encode(&text));
        }
        let shape = graph::Shape::new(&[strings.len()])?;
        ctx.set_output(0, Tensor::strings(strings, shape)?);
        Ok(())
    })
}

/// Outputs the ICU number of each code point's script, or -1 for values that are no code points.
fn scripts(ctx: &mut KernelContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    let mut out = ctx.allocate(DType::Int32, input.shape().clone())?;
    for (script, &code) in out.values_mut::<i32>()?.iter_mut().zip(input.values::<i32>()?) {
        *script = script::of_code(code);
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Appends a code point to text in UTF-16. A surrogate is appended as one unit; two adjacent surrogates that form a
/// pair become one character.
fn push(text: &mut Vec<u16>, code: u32) {
    match char::from_u32(code) {
        Some(c) => text.extend_from_slice(c.encode_utf16(&mut [0; 2])),
        None => text.push(code as u16),
    }
}

/// The encoding of an output.
#[derive(Clone, Copy, Debug)]
enum Form {
    Utf8,
    Utf16,
    Utf32,
}

impl Form {
    fn of(init: &KernelInit<'_>) -> Result<Form> {
        match &*init.attr::<String>("output_encoding")? {
            "UTF-8" => Ok(Form::Utf8),
            "UTF-16-BE" => Ok(Form::Utf16),
            "UTF-32-BE" => Ok(Form::Utf32),
            other => invalid!("output_encoding must be UTF-8, UTF-16-BE or UTF-32-BE, not {other}"),
        }
    }

    /// Encodes text in UTF-16. Lone surrogates become U+FFFD in UTF-8, and are kept in the other forms.
    fn encode(self, text: &[u16]) -> Bytes {
        let codes = char::decode_utf16(text.iter().copied());
        match self {
            Form::Utf8 => codes
                .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect::<String>()
                .into_bytes()
                .into(),
            Form::Utf16 => text.iter().flat_map(|unit| unit.to_be_bytes()).collect(),
            Form::Utf32 => {
                let code = |c: std::result::Result<char, _>| {
                    c.map_or_else(
                        |e: std::char::DecodeUtf16Error| u32::from(e.unpaired_surrogate()),
                        u32::from,
                    )
                };
                codes.flat_map(|c| code(c).to_be_bytes()).collect()
            }
        }
    }
}
