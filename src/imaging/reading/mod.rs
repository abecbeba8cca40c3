//! The picture side of reading text: pages, where their lines are, lines cut out, and the order to read them in.
//!
//! The networks' side is `runtime::ocr`; `service::reading` leads from one to the other. The methods are those of
//! PP-OCR (`PaddleOCR` 2.6 on, Apache-2.0), with connected regions instead of contours: a region's convex hull is that
//! of its contour, and the rectangle around it is all that is wanted. A rectangle is also grown without clipping
//! polygons: each side moves out by the same distance. So no library is needed for either.

mod layout;
mod page;
mod parts;
mod regions;
mod resample;
mod strip;

pub use layout::passages;
pub use page::{Overview, OverviewLimits, Page};
pub use parts::{PageMap, Part, closer};
pub use regions::{RegionRules, shows_signs, signs, text_boxes};
pub use strip::{Strip, StripRules};
