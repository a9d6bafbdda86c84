//! PNG pictures, looked at.

use std::io::Cursor;

/// Colours of matplotlib's first two lines, `#1f77b4` and `#ff7f0e`.
pub const BLUE: [u8; 3] = [0x1f, 0x77, 0xb4];
pub const ORANGE: [u8; 3] = [0xff, 0x7f, 0x0e];
/// Compression and smoothing leave a colour this near, per channel.
const NEAR: u8 = 8;

/// A decoded PNG.
#[derive(Debug)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    /// Pixels an inch, where the file says.
    pub dpi: Option<u32>,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    #[track_caller]
    pub fn decode(bytes: &[u8]) -> Self {
        let mut decoder = png::Decoder::new(Cursor::new(bytes));
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().expect("a PNG");
        let mut buffer = vec![0; reader.output_buffer_size().expect("a size")];
        let frame = reader.next_frame(&mut buffer).expect("a complete PNG");
        let samples = frame.color_type.samples();
        assert!(samples >= 3, "a picture in colour");
        let pixels = buffer[..frame.buffer_size()]
            .chunks_exact(samples)
            .map(|p| [p[0], p[1], p[2]]);
        let per_metre = reader.info().pixel_dims.map(|d| d.xppu);
        Self {
            width: frame.width,
            height: frame.height,
            dpi: per_metre.map(|n| (f64::from(n) * 0.0254).round() as u32),
            pixels: pixels.collect(),
        }
    }

    fn count(&self, colour: [u8; 3]) -> usize {
        let near = |p: &&[u8; 3]| p.iter().zip(colour).all(|(a, b)| a.abs_diff(b) <= NEAR);
        self.pixels.iter().filter(near).count()
    }

    /// Asserts that both lines are drawn, on a background that is mostly white.
    #[track_caller]
    pub fn assert_shows_two_lines(&self) {
        let all = self.pixels.len();
        let (blue, orange) = (self.count(BLUE), self.count(ORANGE));
        let white = self.count([0xff; 3]);
        assert!(
            blue > all / 1000 && orange > all / 1000,
            "blue {blue}, orange {orange} of {all}"
        );
        assert!(white > all / 2, "white {white} of {all}");
    }
}
