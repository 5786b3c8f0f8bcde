//! Kernels of assertions and of printing: `Assert`, `Print`, `PrintV2`, `StringFormat`.

mod text;

use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::{Bool8, Code, Tensor};
use std::io::Write;
use std::sync::atomic::{AtomicI64, Ordering};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Assert", &[], |init| {
        let summarize = init.attr::<i64>("summarize")?;
        Kernel::sync(move |ctx| assert(ctx, summarize))
    }),
    KernelDef::of("Timestamp", &[], |_| {
        Kernel::sync(|ctx| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            ctx.set_scalar(0, now.map_or(0.0, |elapsed| elapsed.as_secs_f64()));
            Ok(())
        })
    }),
    KernelDef::of("Print", &[], print),
    KernelDef::of("PrintV2", &[], |init| {
        let stream = PrintStream::parse(&init.attr::<String>("output_stream")?)?;
        let end = init.attr::<Bytes>("end")?;
        Kernel::sync(move |ctx| stream.write(&[text_of(ctx.input(0)?)?, &end[..]].concat()))
    }),
    KernelDef::of("StringFormat", &[], string_format),
];

fn assert(ctx: &mut KernelContext<'_>, summarize: i64) -> Result<()> {
    let condition = ctx.input(0)?;
    let [holds] = condition.values::<Bool8>()? else {
        device::invalid!("In[0] should be a scalar: {}", condition.shape());
    };
    if condition.shape().rank() != 0 {
        device::invalid!("In[0] should be a scalar: {}", condition.shape());
    }
    if holds.get() {
        return Ok(());
    }
    let data = ctx.inputs_from(1)?;
    let shown: Vec<String> = data.iter().map(|t| format!("[{}]", text::summary(t, summarize))).collect();
    Err(Error::invalid(format!("assertion failed: {}", shown.join(" "))))
}

fn print(init: &KernelInit<'_>) -> Result<Kernel> {
    let message = init.attr::<String>("message")?;
    let first_n = init.attr::<i64>("first_n")?;
    let summarize = init.attr::<i64>("summarize")?;
    let printed = AtomicI64::new(0);
    Kernel::sync(move |ctx| {
        if first_n < 0 || printed.fetch_add(1, Ordering::Relaxed) < first_n {
            let mut line = message.clone();
            for value in ctx.inputs_from(1)? {
                line.push_str(&format!("[{}]", text::summary(value, summarize)));
            }
            line.push('\n');
            PrintStream::Stderr("").write(line.as_bytes())?;
        }
        let value = ctx.take_value(0);
        ctx.set_output(0, value);
        Ok(())
    })
}

/// The output stream of `PrintV2`.
enum PrintStream {
    Stdout,
    /// Standard error, with a prefix that states the severity.
    Stderr(&'static str),
    /// A file to which the text is appended.
    File(String),
}

impl PrintStream {
    /// Parses the attribute `output_stream`.
    fn parse(name: &str) -> Result<PrintStream> {
        Ok(match name {
            "stdout" => PrintStream::Stdout,
            "stderr" => PrintStream::Stderr(""),
            "log(info)" => PrintStream::Stderr("INFO "),
            "log(warning)" => PrintStream::Stderr("WARNING "),
            "log(error)" => PrintStream::Stderr("ERROR "),
            other => match other.strip_prefix("file://") {
                Some(path) => PrintStream::File(path.to_owned()),
                None => device::invalid!(
                    "Unknown output stream: {other}, valid streams are: stdout, stderr, log(info), log(warning), \
                     log(error), file://<path>"
                ),
            },
        })
    }

    /// Writes the text in one call, so that messages of concurrent steps are not interleaved.
    fn write(&self, text: &[u8]) -> Result<()> {
        match self {
            // A closed terminal must not fail the step.
            PrintStream::Stdout => {
                let _ = std::io::stdout().lock().write_all(text);
                Ok(())
            }
            PrintStream::Stderr(prefix) => {
                let _ = std::io::stderr().lock().write_all(&[prefix.as_bytes(), text].concat());
                Ok(())
            }
            PrintStream::File(path) => std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .and_then(|mut file| file.write_all(text))
                .map_err(|e| Error::new(Code::Unknown, format!("{path}: {e}"))),
        }
    }
}

/// Returns the string in a scalar string tensor.
fn text_of(value: &Tensor) -> Result<&[u8]> {
    match value.as_strings()? {
        [text] if value.shape().rank() == 0 => Ok(text),
        _ => Err(Error::invalid(format!("Input is expected to be scalar, but got {}", value.shape()))),
    }
}

fn string_format(init: &KernelInit<'_>) -> Result<Kernel> {
    let template = init.attr::<String>("template")?;
    let placeholder = init.attr::<String>("placeholder")?;
    let summarize = init.attr::<i64>("summarize")?;
    if placeholder.is_empty() {
        device::invalid!("the placeholder of StringFormat is empty");
    }
    let pieces: Vec<String> = template.split(&*placeholder).map(str::to_owned).collect();
    if pieces.len() - 1 != init.inputs.len() {
        device::invalid!(
            "num placeholders in template and num inputs must match: {} vs. {}",
            pieces.len() - 1,
            init.inputs.len()
        );
    }
    Kernel::sync(move |ctx| {
        let mut out = pieces[0].clone().into_bytes();
        for (value, piece) in ctx.inputs_from(0)?.iter().zip(&pieces[1..]) {
            out.extend(text::layout(value, summarize));
            out.extend_from_slice(piece.as_bytes());
        }
        ctx.set_output(0, Tensor::string(out));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;
    use graph::DType;

    fn failed(condition: bool, summarize: i64) -> Result<String> {
        let data = [Tensor::from("x = y"), Tensor::try_from([1.0f32, 2.5, 3e10, 1e-7])?];
        let inputs = [&[Tensor::from(condition)][..], &data[..]].concat();
        let attrs = [("T", vec![DType::String, DType::Float].into()), ("summarize", summarize.into())];
        Ok(run_op("Assert", &inputs, &attrs).err().map(|e| e.to_string()).unwrap_or_default())
    }

    #[test]
    fn a_failed_assertion_shows_its_data() -> Result<()> {
        assert_eq!(failed(true, 3)?, "");
        assert_eq!(failed(false, 3)?, "assertion failed: [x = y] [1 2.5 3e+10...]");
        assert_eq!(failed(false, -1)?, "assertion failed: [x = y] [1 2.5 3e+10 1e-07]");
        let vector = Tensor::bools(&[false, true], [2].try_into()?)?;
        let attrs = [("T", vec![DType::Bool].into())];
        assert!(run_op("Assert", &[vector, true.into()], &attrs).is_err());
        Ok(())
    }

    #[test]
    fn print_forwards_its_input() -> Result<()> {
        let x = Tensor::try_from([1.0f32])?;
        let attrs = [("T", DType::Float.into()), ("U", vec![DType::Float].into())];
        assert_eq!(run_op("Print", &[x.clone(), x.clone()], &attrs)?, [x]);
        Ok(())
    }

    #[test]
    fn print_v2_appends_to_a_file() -> Result<()> {
        let path = std::env::temp_dir().join(format!("anabranch-print-{}", std::process::id()));
        let stream = format!("file://{}", path.display());
        for line in ["one", "two"] {
            run_op("PrintV2", &[line.into()], &[("output_stream", stream.as_str().into())])?;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(&path);
        assert_eq!(text, "one\ntwo\n");
        assert!(run_op("PrintV2", &["".into()], &[("output_stream", "nowhere".into())]).is_err());
        Ok(())
    }

    #[test]
    fn string_format_fills_its_template() -> Result<()> {
        let inputs = [Tensor::try_from([[0i32, 1], [2, 3]])?, Tensor::from("s")];
        let types = vec![DType::Int32, DType::String];
        let attrs = [("T", types.into()), ("template", "A %s B %s C".into())];
        assert_eq!(run_op("StringFormat", &inputs, &attrs)?, [Tensor::from("A [[0 1]\n [2 3]] B \"s\" C")]);
        let attrs = [("T", vec![DType::Int32].into()), ("template", "none".into())];
        assert!(run_op("StringFormat", &inputs[..1], &attrs).is_err());
        Ok(())
    }
}
