//! Kernels that make datasets without an input dataset.

use super::dataset_memory::seed_source;
use super::parsing::csv::scalar;
use crate::objects::dataset::argument::{
    boolean, captured, count, dataset_kernel, function, integer, spec, string, tensors,
};
use crate::objects::dataset::csv::{Columns, Csv};
use crate::objects::dataset::files::{Files, fixed_length_records, records, text_lines};
use crate::objects::dataset::generator::Generator;
use crate::objects::dataset::matching_files::matching_files;
use crate::objects::dataset::shuffle::{SeedSource, Seeds};
use crate::objects::dataset::source::{Elements, Random, Range, Slices, SparseSlices};
use crate::objects::dataset::sql::{check_columns, sql};
use crate::objects::io::{Compression, FixedFormat, path_of};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::DType;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("TensorDataset", &[], |init| {
        dataset_kernel(init, |ctx| Elements::tensors(tensors(ctx, 0..ctx.num_inputs())?))
    }),
    KernelDef::of("TensorSliceDataset", &[], |init| {
        let is_files = init.attr::<bool>("is_files")?;
        dataset_kernel(init, move |ctx| {
            let components = tensors(ctx, 0..ctx.num_inputs())?;
            if is_files && (components.len() != 1 || components[0].dtype() != DType::String) {
                device::invalid!("file names must be a single tensor of strings");
            }
            Slices::dataset(components)
        })
    }),
    KernelDef::of("SparseTensorSliceDataset", &[], |init| {
        dataset_kernel(init, |ctx| {
            SparseSlices::dataset(ctx.input(0)?.clone(), ctx.input(1)?.clone(), ctx.input(2)?)
        })
    }),
    KernelDef::of("ListDataset", &[], |init| list(init, "List")),
    KernelDef::of("WindowOp", &[], |init| list(init, "Window")),
    KernelDef::of("MatchingFilesDataset", &[], matching),
    KernelDef::of("ExperimentalMatchingFilesDataset", &[], matching),
    KernelDef::of("RangeDataset", &[], |init| {
        let dtype = spec(init)?.dtypes[0];
        dataset_kernel(init, move |ctx| {
            Range::dataset(
                integer(ctx, 0, "start")?,
                integer(ctx, 1, "stop")?,
                integer(ctx, 2, "step")?,
                dtype,
            )
        })
    }),
    KernelDef::of("RandomDataset", &[], random),
    KernelDef::of("ExperimentalRandomDataset", &[], random),
    KernelDef::of("RandomDatasetV2", &[], |init| {
        let spec = spec(init)?;
        let rerandomize = init.attr::<bool>("rerandomize_each_iteration")?;
        dataset_kernel(init, move |ctx| {
            let seeds = seed_source(ctx, 2, seeds(ctx, 0)?, rerandomize)?;
            Random::dataset(seeds, spec.clone())
        })
    }),
    KernelDef::of("TextLineDataset", &[], |init| {
        dataset_kernel(init, |ctx| text_lines(files(ctx, Some(1), Some(2))?))
    }),
    KernelDef::of("TFRecordDataset", &[], |init| {
        dataset_kernel(init, |ctx| records(files(ctx, Some(1), Some(2))?, Vec::new()))
    }),
    KernelDef::of("TFRecordDatasetV2", &[], |init| {
        dataset_kernel(init, |ctx| {
            let offsets = ctx.input(3)?.values::<i64>()?.iter().map(|&offset| {
                u64::try_from(offset).or_else(|_| device::invalid!("`byte_offsets` must not be negative"))
            });
            records(files(ctx, Some(1), Some(2))?, offsets.collect::<Result<_>>()?)
        })
    }),
    KernelDef::of("FixedLengthRecordDataset", &[], |init| {
        dataset_kernel(init, |ctx| fixed_length_records(files(ctx, None, Some(4))?, format(ctx)?))
    }),
    KernelDef::of("FixedLengthRecordDatasetV2", &[], |init| {
        dataset_kernel(init, |ctx| fixed_length_records(files(ctx, Some(5), Some(4))?, format(ctx)?))
    }),
    KernelDef::of("CSVDataset", &[], csv_dataset),
    KernelDef::of("CSVDatasetV2", &[], csv_dataset),
    KernelDef::of("ExperimentalCSVDataset", &[], csv_dataset),
    KernelDef::of("GeneratorDataset", &[], generator),
    KernelDef::of("SqlDataset", &[], sql_dataset),
    KernelDef::of("ExperimentalSqlDataset", &[], sql_dataset),
];

/// Makes a kernel that outputs the dataset of the elements whose components are the inputs, one element after the other.
fn list(init: &KernelInit<'_>, name: &'static str) -> Result<Kernel> {
    let spec = spec(init)?;
    dataset_kernel(init, move |ctx| {
        let all = tensors(ctx, 0..ctx.num_inputs())?;
        let components = spec.dtypes.len();
        // A list must be whole; a window leaves out the tensors of an element that is not complete.
        if components == 0 || all.len() % components != 0 && name == "List" {
            device::invalid!(
                "{} tensors cannot be split into elements of {components} components",
                all.len()
            );
        }
        let elements = all.chunks_exact(components).map(<[_]>::to_vec).collect();
        Elements::dataset(name, spec.clone(), elements)
    })
}

/// `MatchingFilesDataset`: the names of files.
fn matching(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| matching_files(ctx.input(0)?.as_strings()?.to_vec()))
}

fn generator(init: &KernelInit<'_>) -> Result<Kernel> {
    let [init_func, next_func, finalize_func] =
        ["init_func", "next_func", "finalize_func"].map(|attr| function(init, attr));
    let (init_func, next_func, finalize_func, spec) = (init_func?, next_func?, finalize_func?, spec(init)?);
    let (init_args, next_args) = (count(init, "Tinit_func_args")?, count(init, "Tnext_func_args")?);
    dataset_kernel(init, move |ctx| {
        let generator = Generator {
            init: captured(ctx, &init_func, 0..init_args)?,
            next: captured(ctx, &next_func, init_args..init_args + next_args)?,
            finalize: captured(ctx, &finalize_func, init_args + next_args..ctx.num_inputs())?,
            spec: spec.clone(),
        };
        generator.dataset()
    })
}

fn csv_dataset(init: &KernelInit<'_>) -> Result<Kernel> {
    let spec = spec(init)?;
    // The last input of the second version lists the columns to exclude.
    let excludes = init.node.op.name() == "CSVDatasetV2";
    dataset_kernel(init, move |ctx| {
        let files = files(ctx, Some(1), Some(2))?;
        if files.buffer.is_none() {
            device::invalid!("buffer_size should be positive");
        }
        let end = ctx.num_inputs() - usize::from(excludes);
        let defaults = tensors(ctx, 8..end)?;
        for default in &defaults {
            if default.shape().rank() > 1 || default.num_elements() > 1 {
                device::invalid!("Shape of a default must be a length-0 or length-1 vector, or a scalar.");
            }
        }
        let &[delimiter] = &string(ctx, 4, "field_delim")?[..] else {
            device::invalid!("field_delim should be only 1 char");
        };
        let only = columns(ctx, 7, "select_cols")?;
        let without = if excludes { columns(ctx, end, "exclude_cols")? } else { Vec::new() };
        let columns = match (only.is_empty(), without.is_empty()) {
            (true, true) => Columns::All,
            (true, false) => Columns::Except(without),
            (false, true) if only.len() == defaults.len() => Columns::Only(only),
            (false, true) => device::invalid!("select_cols should match output size"),
            _ => device::invalid!("Either select_cols or exclude_cols should be empty"),
        };
        let csv = Csv {
            delimiter,
            has_quotes: boolean(ctx, 5, "use_quote_delim")?,
            has_header: boolean(ctx, 3, "header")?,
            missing: string(ctx, 6, "na_value")?,
            columns,
            defaults,
            parse: scalar,
        };
        crate::objects::dataset::csv::csv(files, csv, spec.clone())
    })
}

fn sql_dataset(init: &KernelInit<'_>) -> Result<Kernel> {
    let spec = spec(init)?;
    check_columns(&spec)?;
    dataset_kernel(init, move |ctx| {
        let driver = string(ctx, 0, "driver_name")?;
        if driver != "sqlite" {
            device::invalid!(
                "The database type, {}, is not supported by SqlDataset. The set of supported databases is: {{'sqlite'}}.",
                String::from_utf8_lossy(&driver)
            );
        }
        let query = String::from_utf8_lossy(&string(ctx, 2, "query")?).into_owned();
        sql(path_of(string(ctx, 1, "data_source_name")?), query, spec.clone())
    })
}

/// Returns the column numbers in input `i`, which must be strictly increasing.
fn columns(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<Vec<usize>> {
    let columns = ctx.input(i)?;
    if columns.shape().rank() != 1 {
        device::invalid!("`{name}` must be a vector.");
    }
    let columns = columns.values::<i64>()?;
    if columns.windows(2).any(|pair| pair[0] >= pair[1]) {
        device::invalid!("{name} should be strictly increasing indices");
    }
    let number = |&column: &i64| {
        usize::try_from(column).or_else(|_| device::invalid!("{name} should be non-negative"))
    };
    columns.iter().map(number).collect()
}

/// Returns the seeds in inputs `at` and `at + 1`.
pub(super) fn seeds(ctx: &KernelContext<'_>, at: usize) -> Result<Seeds> {
    Ok(Seeds(integer(ctx, at, "seed")?, integer(ctx, at + 1, "seed2")?))
}

fn random(init: &KernelInit<'_>) -> Result<Kernel> {
    let spec = spec(init)?;
    dataset_kernel(init, move |ctx| Random::dataset(SeedSource::new(seeds(ctx, 0)?, false), spec.clone()))
}

/// Returns the file names in input 0, with the compression and the buffer size in the inputs numbered `compression` and
/// `buffer`.
fn files(ctx: &KernelContext<'_>, compression: Option<usize>, buffer: Option<usize>) -> Result<Files> {
    let names = ctx.input(0)?;
    if names.shape().rank() > 1 {
        device::invalid!("`filenames` must be a scalar or a vector.");
    }
    let compression = match compression {
        Some(i) => Compression::parse(&string(ctx, i, "compression_type")?)?,
        None => Compression::None,
    };
    let buffer = match buffer {
        Some(i) => integer(ctx, i, "buffer_size")?,
        None => 0,
    };
    if buffer < -1 {
        device::invalid!("`buffer_size` must be >= 0 or -1 for the default");
    }
    let paths = names.as_strings()?.iter().map(path_of).collect();
    Ok(Files { paths, compression, buffer: usize::try_from(buffer).ok().filter(|size| *size > 0) })
}

/// Returns the lengths of header, record and footer, in inputs 1 to 3.
fn format(ctx: &KernelContext<'_>) -> Result<FixedFormat> {
    let length = |i: usize, name: &str| match u64::try_from(integer(ctx, i, name)?) {
        Ok(length) => Ok(length),
        Err(_) => device::invalid!("{name} must be >= 0"),
    };
    let (header, record) = (length(1, "header_bytes")?, length(2, "record_bytes")?);
    if record == 0 {
        device::invalid!("record_bytes must be > 0");
    }
    Ok(FixedFormat { header, record, footer: length(3, "footer_bytes")?, hop: 0 })
}
