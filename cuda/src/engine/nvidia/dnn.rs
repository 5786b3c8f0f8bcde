//! Convolutions with cuDNN.

use super::candidates::Candidates;
use crate::engine::driver::{Convolution, ConvolutionMemory, Direction, Image, StreamId, WorkspaceBytes};
use crate::engine::library;
use cudarc::cudnn::sys;
use device::{Error, Result};
use graph::DType;
use rustc_hash::FxHashMap;
use std::ffi::{c_int, c_void};

/// cuDNN on one GPU, with the descriptors and algorithms of each convolution.
#[derive(Debug)]
pub(super) struct Dnn {
    handle: sys::cudnnHandle_t,
    /// The CUDA stream that is set in the handle.
    stream: Option<StreamId>,
    /// The descriptors and algorithms of each convolution; `None` for convolutions without an algorithm.
    cache: FxHashMap<Convolution, Option<Prepared>>,
}

// SAFETY: cuDNN lets any thread use a handle or descriptor, one thread at a time.
unsafe impl Send for Dnn {}

/// Largest number of cached convolutions; the cache is cleared when it is full, because shapes may keep
/// changing.
const MAX_CACHED: usize = 4096;

/// Size in bytes: algorithms with a larger workspace are not considered, unless all algorithms need more.
const MAX_WORKSPACE: usize = 1 << 30;

/// The descriptors of a convolution and its candidate algorithms.
#[derive(Debug)]
struct Prepared {
    descriptors: Descriptors,
    candidates: Candidates<Candidate>,
}

/// The descriptors of a convolution and its tensors.
#[derive(Debug)]
struct Descriptors {
    input: Tensor,
    filter: Filter,
    output: Tensor,
    convolution: Description,
}

/// One algorithm for a convolution, with its workspace.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    algorithm: Algorithm,
    /// Size in bytes of the workspace that the algorithm needs.
    workspace: usize,
}

/// cuDNN's id of an algorithm for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    Input(sys::cudnnConvolutionBwdDataAlgo_t),
    Filter(sys::cudnnConvolutionBwdFilterAlgo_t),
}

/// Declares descriptor types, each of which destroys its descriptor when dropped.
macro_rules! descriptors {
    ($($name:ident: $type:ident, $create:ident, $destroy:ident;)*) => {$(
        #[derive(Debug)]
        struct $name(sys::$type);

        impl $name {
            fn new() -> Result<$name> {
                let mut descriptor = std::ptr::null_mut();
                // SAFETY: the call writes the new descriptor's address.
                check(stringify!($create), unsafe { sys::$create(&raw mut descriptor) })?;
                Ok($name(descriptor))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the descriptor has no other users.
                let _ = unsafe { sys::$destroy(self.0) };
            }
        }
    )*};
}

descriptors! {
    Tensor: cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor;
    Filter: cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor;
    Description: cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor;
}

/// Turns a failed call's status into an error.
fn check(call: &str, status: sys::cudnnStatus_t) -> Result<()> {
    status.result().map_err(|error| Error::internal(format!("cuDNN: {call} failed: {:?}", error.0)))
}

/// Returns whether the status means that cuDNN does not support the call, rather than that the call failed. The
/// thousands digit of a status is its group.
fn is_refusal(status: sys::cudnnStatus_t) -> bool {
    let thousands = |status: sys::cudnnStatus_t| status as u32 / 1000;
    [sys::cudnnStatus_t::CUDNN_STATUS_BAD_PARAM, sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED]
        .map(thousands)
        .contains(&thousands(status))
}

/// Converts a size to cuDNN's type.
fn int(n: usize) -> Result<c_int> {
    c_int::try_from(n).map_err(|_| Error::invalid(format!("a convolution with a size of {n} is too large")))
}

fn data_type(dtype: DType) -> Result<sys::cudnnDataType_t> {
    Ok(match dtype {
        DType::Float => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        DType::Double => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
        DType::Half => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        DType::BFloat16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        other => return Err(Error::unimplemented(format!("no convolution of {other} on GPUs"))),
    })
}

impl Tensor {
    /// Returns the descriptor of a batch of images.
    fn of(image: &Image, dtype: DType) -> Result<Tensor> {
        let tensor = Tensor::new()?;
        let [n, c, h, w] = image.sizes;
        let strides = match image.channels_last {
            true => [c * h * w, 1, c * w, c],
            false => [c * h * w, h * w, w, 1],
        };
        let (mut sizes, mut steps) = ([0; 4], [0; 4]);
        for i in 0..4 {
            (sizes[i], steps[i]) = (int([n, c, h, w][i])?, int(strides[i])?);
        }
        // SAFETY: both arrays have four elements, which is the number that the call gets as an argument.
        let status = unsafe {
            sys::cudnnSetTensorNdDescriptor(tensor.0, data_type(dtype)?, 4, sizes.as_ptr(), steps.as_ptr())
        };
        check("cudnnSetTensorNdDescriptor", status)?;
        Ok(tensor)
    }
}

impl Prepared {
    /// Creates the descriptors of a convolution and finds its algorithms; returns `None` if cuDNN has no
    /// algorithm.
    fn new(handle: sys::cudnnHandle_t, of: &Convolution) -> Result<Option<Prepared>> {
        let dtype = data_type(of.dtype)?;
        let input = Tensor::of(&of.input, of.dtype)?;
        let output = Tensor::of(&of.output, of.dtype)?;
        let (filter, convolution) = (Filter::new()?, Description::new()?);
        let format = match of.input.channels_last {
            true => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
            false => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        };
        let [k, c, h, w] = of.filter;
        let compute = match of.dtype {
            DType::Double => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
            _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        let math = match of.dtype {
            DType::Float if !of.tf32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
            _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        };
        let ([pad_h, pad_w], [step_h, step_w], [dilate_h, dilate_w]) = (of.padding, of.strides, of.dilations);
        // SAFETY: the descriptors are local to this function; the other arguments are numbers.
        unsafe {
            let set =
                sys::cudnnSetFilter4dDescriptor(filter.0, dtype, format, int(k)?, int(c)?, int(h)?, int(w)?);
            check("cudnnSetFilter4dDescriptor", set)?;
            let set = sys::cudnnSetConvolution2dDescriptor(
                convolution.0,
                int(pad_h)?,
                int(pad_w)?,
                int(step_h)?,
                int(step_w)?,
                int(dilate_h)?,
                int(dilate_w)?,
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                compute,
            );
            check("cudnnSetConvolution2dDescriptor", set)?;
            check(
                "cudnnSetConvolutionGroupCount",
                sys::cudnnSetConvolutionGroupCount(convolution.0, int(of.groups)?),
            )?;
            check("cudnnSetConvolutionMathType", sys::cudnnSetConvolutionMathType(convolution.0, math))?;
        }
        let candidates = candidates(handle, of.direction, [input.0, output.0], filter.0, convolution.0)?;
        let descriptors = Descriptors { input, filter, output, convolution };
        Ok(Candidates::new(candidates).map(|candidates| Prepared { descriptors, candidates }))
    }
}

impl Descriptors {
    /// Enqueues the convolution with one algorithm, which uses the workspace in `at`, and returns cuDNN's
    /// status.
    fn enqueue(
        &self,
        handle: sys::cudnnHandle_t,
        dtype: DType,
        candidate: &Candidate,
        at: &ConvolutionMemory,
    ) -> sys::cudnnStatus_t {
        let (x, w, y) = (at.input.0 as *mut c_void, at.filter.0 as *mut c_void, at.output.0 as *mut c_void);
        let space = at.workspace.map_or(std::ptr::null_mut(), |(address, _)| address.0 as *mut c_void);
        let bytes = candidate.workspace;
        let ((one, zero), (one_double, zero_double)) = ((1f32, 0f32), (1f64, 0f64));
        let (alpha, beta): (*const c_void, *const c_void) = match dtype {
            DType::Double => ((&raw const one_double).cast(), (&raw const zero_double).cast()),
            _ => ((&raw const one).cast(), (&raw const zero).cast()),
        };
        let (input, filter, output) = (self.input.0, self.filter.0, self.output.0);
        let description = self.convolution.0;
        // SAFETY: the addresses are of tensors that the descriptors describe and of a workspace of at least
        // `bytes`, which live until the stream has executed the convolution; the scalars have the compute type.
        unsafe {
            match candidate.algorithm {
                Algorithm::Forward(algorithm) => sys::cudnnConvolutionForward(
                    handle,
                    alpha,
                    input,
                    x,
                    filter,
                    w,
                    description,
                    algorithm,
                    space,
                    bytes,
                    beta,
                    output,
                    y,
                ),
                Algorithm::Input(algorithm) => sys::cudnnConvolutionBackwardData(
                    handle,
                    alpha,
                    filter,
                    w,
                    output,
                    y,
                    description,
                    algorithm,
                    space,
                    bytes,
                    beta,
                    input,
                    x,
                ),
                Algorithm::Filter(algorithm) => sys::cudnnConvolutionBackwardFilter(
                    handle,
                    alpha,
                    input,
                    x,
                    output,
                    y,
                    description,
                    algorithm,
                    space,
                    bytes,
                    beta,
                    filter,
                    w,
                ),
            }
        }
    }
}

/// Returns cuDNN's algorithms for one direction, in the order of expected speed.
fn candidates(
    handle: sys::cudnnHandle_t,
    direction: Direction,
    [x, y]: [sys::cudnnTensorDescriptor_t; 2],
    w: sys::cudnnFilterDescriptor_t,
    convolution: sys::cudnnConvolutionDescriptor_t,
) -> Result<Vec<Candidate>> {
    const MAX_ALGORITHMS: usize = 8;
    let mut count: c_int = 0;
    macro_rules! ask {
        ($call:ident, $kind:ident, $answer:ident, $first:expr, $second:expr, $third:expr) => {{
            let mut found = [std::mem::MaybeUninit::<sys::$answer>::uninit(); MAX_ALGORITHMS];
            // SAFETY: the array has room for the number of answers asked for, and only answers that cuDNN wrote
            // are read.
            unsafe {
                let status = sys::$call(
                    handle,
                    $first,
                    $second,
                    convolution,
                    $third,
                    MAX_ALGORITHMS as c_int,
                    &raw mut count,
                    found.as_mut_ptr().cast(),
                );
                check(stringify!($call), status)?;
                let returned = found.iter().take(usize::try_from(count).unwrap_or(0)).map(|f| f.assume_init());
                returned.filter(|f| f.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS)
                    .map(|f| Candidate { algorithm: Algorithm::$kind(f.algo), workspace: f.memory })
                    .collect::<Vec<_>>()
            }
        }};
    }
    let found = match direction {
        Direction::Forward => {
            ask!(cudnnGetConvolutionForwardAlgorithm_v7, Forward, cudnnConvolutionFwdAlgoPerf_t, x, w, y)
        }
        Direction::Input => ask!(
            cudnnGetConvolutionBackwardDataAlgorithm_v7,
            Input,
            cudnnConvolutionBwdDataAlgoPerf_t,
            w,
            y,
            x
        ),
        Direction::Filter => ask!(
            cudnnGetConvolutionBackwardFilterAlgorithm_v7,
            Filter,
            cudnnConvolutionBwdFilterAlgoPerf_t,
            x,
            y,
            w
        ),
    };
    // cuDNN lists an algorithm once for each math type, but the descriptor fixes the math type, so duplicates
    // are merged.
    let mut candidates: Vec<Candidate> = Vec::new();
    for candidate in found {
        match candidates.iter_mut().find(|same| same.algorithm == candidate.algorithm) {
            Some(same) => same.workspace = same.workspace.max(candidate.workspace),
            None => candidates.push(candidate),
        }
    }
    let least = candidates.iter().map(|candidate| candidate.workspace).min().unwrap_or(0);
    candidates.retain(|candidate| candidate.workspace <= least.max(MAX_WORKSPACE));
    Ok(candidates)
}

impl Dnn {
    /// Creates a handle in this thread's context.
    pub(super) fn open() -> Result<Dnn> {
        library::DNN.check()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the call writes the new handle.
        check("cudnnCreate", unsafe { sys::cudnnCreate(&raw mut handle) })?;
        Ok(Dnn { handle, stream: None, cache: FxHashMap::default() })
    }

    /// Returns the descriptors and algorithms of a convolution from the cache, filled on first use; `None` if
    /// cuDNN has no algorithm.
    fn prepared(&mut self, convolution: &Convolution) -> Result<Option<&mut Prepared>> {
        if !self.cache.contains_key(convolution) {
            if self.cache.len() >= MAX_CACHED {
                self.cache.clear();
            }
            let prepared = Prepared::new(self.handle, convolution)?;
            self.cache.insert(convolution.clone(), prepared);
        }
        Ok(self.cache.get_mut(convolution).and_then(Option::as_mut))
    }

    /// Returns the workspace sizes of a convolution. The preferred size is enough for all algorithms if they
    /// may still be timed, or else for the fastest.
    pub(super) fn workspace(
        &mut self,
        convolution: &Convolution,
        may_time: bool,
    ) -> Result<Option<WorkspaceBytes>> {
        let Some(prepared) = self.prepared(convolution)? else { return Ok(None) };
        let mut bytes = prepared.candidates.iter().map(|candidate| candidate.workspace);
        let Some(first) = bytes.next() else { return Ok(None) };
        let (least, most) = bytes.fold((first, first), |(least, most), n| (least.min(n), most.max(n)));
        let preferred = if may_time && !prepared.candidates.are_timed() { most } else { first };
        Ok(Some(WorkspaceBytes { preferred, minimum: least }))
    }

    /// Enqueues a convolution with the fastest algorithm, found by timing in `timing_stream` if that is given.
    pub(super) fn convolve(
        &mut self,
        convolution: &Convolution,
        at: &ConvolutionMemory,
        stream: StreamId,
        timing_stream: Option<StreamId>,
    ) -> Result<()> {
        if self.stream != Some(stream) {
            // SAFETY: the stream lives as long as the driver that owns this handle.
            let set = unsafe { sys::cudnnSetStream(self.handle, stream.0 as sys::cudaStream_t) };
            check("cudnnSetStream", set)?;
            self.stream = Some(stream);
        }
        let handle = self.handle;
        let Some(Prepared { descriptors, candidates }) = self.prepared(convolution)? else {
            return Err(Error::unimplemented("cuDNN has no algorithm for this convolution"));
        };
        let bytes = at.workspace.map_or(0, |(_, bytes)| bytes);
        let mut said = Ok(());
        let fits = |candidate: &Candidate| candidate.workspace <= bytes;
        let is_enqueued = candidates.enqueue(timing_stream, fits, |candidate| {
            let status = descriptors.enqueue(handle, convolution.dtype, candidate, at);
            let asked = check("a convolution", status);
            if is_refusal(status) {
                said = asked;
                return Ok(false);
            }
            asked.map(|()| true)
        })?;
        match is_enqueued {
            true => Ok(()),
            false => said.and(Err(Error::unimplemented("cuDNN has no algorithm that has memory enough"))),
        }
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        self.cache.clear();
        // SAFETY: the handle has no other users.
        let _ = unsafe { sys::cudnnDestroy(self.handle) };
    }
}
