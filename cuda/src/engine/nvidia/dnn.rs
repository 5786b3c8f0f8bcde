//! Convolutions by cuDNN.

use super::ways::Ways;
use crate::engine::driver::{Convolution, ConvolutionAt, Direction, Image, StreamId, WorkspaceBytes};
use crate::engine::library;
use cudarc::cudnn::sys;
use device::{Error, Result};
use graph::DType;
use rustc_hash::FxHashMap;
use std::ffi::{c_int, c_void};

/// cuDNN on one GPU, with what it has been told of each convolution.
#[derive(Debug)]
pub(super) struct Dnn {
    handle: sys::cudnnHandle_t,
    stream: Option<StreamId>,
    /// `None` for those that it has no algorithm for.
    known: FxHashMap<Convolution, Option<Prepared>>,
}

// SAFETY: a handle, and descriptors, may be used by any thread, one at a time.
unsafe impl Send for Dnn {}

/// Shapes come and go: beyond so many the next starts anew.
const MOST_KNOWN: usize = 4096;

/// An algorithm that needs more memory beside its tensors than this is not tried, bytes.
const MOST_WORKSPACE: usize = 1 << 30;

/// A convolution as cuDNN knows it, and how it may be computed.
#[derive(Debug)]
struct Prepared {
    descriptors: Descriptors,
    ways: Ways<Way>,
}

#[derive(Debug)]
struct Descriptors {
    input: Tensor,
    filter: Filter,
    output: Tensor,
    convolution: Description,
}

#[derive(Clone, Copy, Debug)]
struct Way {
    algorithm: Algorithm,
    /// Bytes.
    workspace: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    Input(sys::cudnnConvolutionBwdDataAlgo_t),
    Filter(sys::cudnnConvolutionBwdFilterAlgo_t),
}

macro_rules! descriptors {
    ($($name:ident: $type:ident, $create:ident, $destroy:ident;)*) => {$(
        #[derive(Debug)]
        struct $name(sys::$type);

        impl $name {
            fn new() -> Result<$name> {
                let mut descriptor = std::ptr::null_mut();
                // SAFETY: writes the new descriptor's address.
                check(stringify!($create), unsafe { sys::$create(&raw mut descriptor) })?;
                Ok($name(descriptor))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: nobody uses the descriptor any more.
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

fn check(call: &str, status: sys::cudnnStatus_t) -> Result<()> {
    status.result().map_err(|error| Error::internal(format!("cuDNN: {call} failed: {:?}", error.0)))
}

/// Whether cuDNN says that it does not do this, rather than that something went wrong: its codes are in thousands.
fn is_refusal(status: sys::cudnnStatus_t) -> bool {
    let thousands = |status: sys::cudnnStatus_t| status as u32 / 1000;
    [sys::cudnnStatus_t::CUDNN_STATUS_BAD_PARAM, sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED]
        .map(thousands)
        .contains(&thousands(status))
}

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
        // SAFETY: both arrays are of the four numbers that are announced.
        let status = unsafe {
            sys::cudnnSetTensorNdDescriptor(tensor.0, data_type(dtype)?, 4, sizes.as_ptr(), steps.as_ptr())
        };
        check("cudnnSetTensorNdDescriptor", status)?;
        Ok(tensor)
    }
}

impl Prepared {
    /// `None` if cuDNN has no algorithm.
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
        // SAFETY: the descriptors are this function's own; all else is numbers.
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
        let ways = ways(handle, of.direction, [input.0, output.0], filter.0, convolution.0)?;
        let descriptors = Descriptors { input, filter, output, convolution };
        Ok(Ways::new(ways).map(|ways| Prepared { descriptors, ways }))
    }
}

impl Descriptors {
    /// What cuDNN says to the convolution when it is asked to enqueue it this way, with a workspace of its bytes.
    fn enqueue(
        &self,
        handle: sys::cudnnHandle_t,
        dtype: DType,
        way: &Way,
        at: &ConvolutionAt,
    ) -> sys::cudnnStatus_t {
        let (x, w, y) = (at.input.0 as *mut c_void, at.filter.0 as *mut c_void, at.output.0 as *mut c_void);
        let space = at.workspace.map_or(std::ptr::null_mut(), |(address, _)| address.0 as *mut c_void);
        let bytes = way.workspace;
        let ((one, zero), (one_double, zero_double)) = ((1f32, 0f32), (1f64, 0f64));
        let (alpha, beta): (*const c_void, *const c_void) = match dtype {
            DType::Double => ((&raw const one_double).cast(), (&raw const zero_double).cast()),
            _ => ((&raw const one).cast(), (&raw const zero).cast()),
        };
        let (input, filter, output) = (self.input.0, self.filter.0, self.output.0);
        let description = self.convolution.0;
        // SAFETY: the addresses are of tensors that the descriptors describe, and of as many bytes as are said, which
        // live until the stream has passed the convolution; the scalars are of the type to compute in.
        unsafe {
            match way.algorithm {
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

/// The algorithms that cuDNN has from `x` to `y` or back, the one that it expects to be the fastest first.
fn ways(
    handle: sys::cudnnHandle_t,
    direction: Direction,
    [x, y]: [sys::cudnnTensorDescriptor_t; 2],
    w: sys::cudnnFilterDescriptor_t,
    convolution: sys::cudnnConvolutionDescriptor_t,
) -> Result<Vec<Way>> {
    const ASKED: usize = 8;
    let mut count: c_int = 0;
    macro_rules! ask {
        ($call:ident, $kind:ident, $answer:ident, $first:expr, $second:expr, $third:expr) => {{
            let mut found = [std::mem::MaybeUninit::<sys::$answer>::uninit(); ASKED];
            // SAFETY: there is room for as many answers as are asked for, and as many are read as came.
            unsafe {
                let status = sys::$call(
                    handle,
                    $first,
                    $second,
                    convolution,
                    $third,
                    ASKED as c_int,
                    &raw mut count,
                    found.as_mut_ptr().cast(),
                );
                check(stringify!($call), status)?;
                let came = found.iter().take(usize::try_from(count).unwrap_or(0)).map(|f| f.assume_init());
                came.filter(|f| f.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS)
                    .map(|f| Way { algorithm: Algorithm::$kind(f.algo), workspace: f.memory })
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
    // One comes once for each kind of arithmetic, of which the descriptor decides.
    let mut ways: Vec<Way> = Vec::new();
    for way in found {
        match ways.iter_mut().find(|known| known.algorithm == way.algorithm) {
            Some(known) => known.workspace = known.workspace.max(way.workspace),
            None => ways.push(way),
        }
    }
    let least = ways.iter().map(|way| way.workspace).min().unwrap_or(0);
    ways.retain(|way| way.workspace <= least.max(MOST_WORKSPACE));
    Ok(ways)
}

impl Dnn {
    /// In this thread's context.
    pub(super) fn open() -> Result<Dnn> {
        library::DNN.check()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the new handle.
        check("cudnnCreate", unsafe { sys::cudnnCreate(&raw mut handle) })?;
        Ok(Dnn { handle, stream: None, known: FxHashMap::default() })
    }

    fn prepared(&mut self, convolution: &Convolution) -> Result<Option<&mut Prepared>> {
        if !self.known.contains_key(convolution) {
            if self.known.len() >= MOST_KNOWN {
                self.known.clear();
            }
            let prepared = Prepared::new(self.handle, convolution)?;
            self.known.insert(convolution.clone(), prepared);
        }
        Ok(self.known.get_mut(convolution).and_then(Option::as_mut))
    }

    /// For all of its algorithms, if they may be tried now and have not been, or else for the first.
    pub(super) fn workspace(
        &mut self,
        convolution: &Convolution,
        may_try: bool,
    ) -> Result<Option<WorkspaceBytes>> {
        let Some(prepared) = self.prepared(convolution)? else { return Ok(None) };
        let mut bytes = prepared.ways.iter().map(|way| way.workspace);
        let Some(first) = bytes.next() else { return Ok(None) };
        let (least, most) = bytes.fold((first, first), |(least, most), n| (least.min(n), most.max(n)));
        let wanted = if may_try && !prepared.ways.are_tried() { most } else { first };
        Ok(Some(WorkspaceBytes { wanted, needed: least }))
    }

    /// In the fastest way, if it may be tried in the stream.
    pub(super) fn convolve(
        &mut self,
        convolution: &Convolution,
        at: &ConvolutionAt,
        stream: StreamId,
        trying: Option<StreamId>,
    ) -> Result<()> {
        if self.stream != Some(stream) {
            // SAFETY: the stream lives as long as the driver that owns this handle.
            let set = unsafe { sys::cudnnSetStream(self.handle, stream.0 as sys::cudaStream_t) };
            check("cudnnSetStream", set)?;
            self.stream = Some(stream);
        }
        let handle = self.handle;
        let Some(Prepared { descriptors, ways }) = self.prepared(convolution)? else {
            return Err(Error::unimplemented("cuDNN has no algorithm for this convolution"));
        };
        let bytes = at.workspace.map_or(0, |(_, bytes)| bytes);
        let mut said = Ok(());
        let fits = |way: &Way| way.workspace <= bytes;
        let is_enqueued = ways.enqueue(trying, fits, |way| {
            let status = descriptors.enqueue(handle, convolution.dtype, way, at);
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
        self.known.clear();
        // SAFETY: nobody uses the handle any more.
        let _ = unsafe { sys::cudnnDestroy(self.handle) };
    }
}
