// Draws points: as points where there are few in view, and else as a histogram of the places, which needs no GPU.

import { SIDE } from "./points.js";

/** Above this number in view, and while the view moves, the density is drawn. */
export const MAX_POINTS = 50000;
/** The same where there is no WebGL 2. */
const MAX_POINTS_2D = 20000;
/** Pixels of the page of a cell of the histogram, along an axis. */
const BIN = 2;
/** In the colour of a point: it is not in the selection. */
export const DIMMED = 128;

const VERTEX = `#version 300 es
in vec2 place; in float colour; uniform vec2 middle; uniform vec2 scale; uniform float size; uniform vec3 palette[16]; out vec4 tone;
void main() {
  gl_Position = vec4((place - middle) * scale * vec2(1.0, -1.0), 0.0, 1.0);
  gl_PointSize = size;
  bool dimmed = colour >= ${DIMMED}.0;
  tone = vec4(palette[int(dimmed ? colour - ${DIMMED}.0 : colour)], dimmed ? 0.12 : 0.8);
}`;
const FRAGMENT = `#version 300 es
precision mediump float; in vec4 tone; out vec4 result;
void main() {
  float edge = 1.0 - smoothstep(0.35, 0.5, distance(gl_PointCoord, vec2(0.5)));
  result = vec4(tone.rgb * tone.a * edge, tone.a * edge);
}`;

/** Draws on two canvases that lie over another: `cloud` for the density, `dots` for points. */
export class Painter {
  constructor(cloud, dots) {
    this.cloud = cloud;
    this.dots = dots;
    this.gl = dots.getContext("webgl2", { antialias: false });
    this.flat = this.gl ? null : dots.getContext("2d");
    this.dense = cloud.getContext("2d");
    if (this.gl) this.begin(this.gl);
    this.limit = this.gl ? MAX_POINTS : MAX_POINTS_2D;
  }

  begin(gl) {
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.bindAttribLocation(program, 0, "place");
    gl.bindAttribLocation(program, 1, "colour");
    gl.linkProgram(program);
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.uniforms = Object.fromEntries(["middle", "scale", "size", "palette"].map((name) => [name, gl.getUniformLocation(program, name)]));
    this.buffers = [gl.createBuffer(), gl.createBuffer()];
  }

  /** Takes points, a colour number for each, and the colours `[[r, g, b], …]`, 0 to 255. */
  set(points, colours, palette) {
    const { gl } = this;
    const isNew = points !== this.points;
    Object.assign(this, { points, colours, palette });
    if (!gl) return;
    if (isNew) {
      const places = new Uint16Array(2 * points.length);
      for (let i = 0; i < points.length; i++) {
        places[2 * i] = points.x[i];
        places[2 * i + 1] = points.y[i];
      }
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[0]);
      gl.bufferData(gl.ARRAY_BUFFER, places, gl.STATIC_DRAW);
      gl.enableVertexAttribArray(0);
      gl.vertexAttribPointer(0, 2, gl.UNSIGNED_SHORT, false, 0, 0);
    }
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[1]);
    gl.bufferData(gl.ARRAY_BUFFER, colours, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(1);
    gl.vertexAttribPointer(1, 1, gl.UNSIGNED_BYTE, false, 0, 0);
    const all = new Float32Array(48);
    palette.forEach((tone, i) => all.set(tone.map((part) => part / 255), 3 * i));
    gl.uniform3fv(this.uniforms.palette, all);
  }

  /** Draws a view `{x, y, scale, width, height}`: its middle, pixels for each unit, and its size; returns what is in view. */
  draw(view, isMoving) {
    if (!this.points) return 0;
    const box = boxOf(view);
    const count = this.points.countIn(box);
    const asPoints = count <= this.limit && !(isMoving && !this.gl && count > this.limit / 4);
    this.dense.clearRect(0, 0, this.cloud.width, this.cloud.height);
    if (this.gl) this.gl.clear(this.gl.COLOR_BUFFER_BIT);
    else this.flat.clearRect(0, 0, this.dots.width, this.dots.height);
    if (!asPoints) this.drawDensity(view, box);
    else if (this.gl) this.drawPoints(view, box, count);
    else this.drawSquares(view, box);
    return count;
  }

  drawPoints(view, box, count) {
    const { gl, uniforms, dots } = this;
    gl.viewport(0, 0, dots.width, dots.height);
    gl.uniform2f(uniforms.middle, view.x, view.y);
    gl.uniform2f(uniforms.scale, (2 * view.scale) / view.width, (2 * view.scale) / view.height);
    gl.uniform1f(uniforms.size, (count > 10000 ? 3 : count > 1000 ? 5 : 8) * (dots.width / view.width));
    this.points.runs(box, (start, end) => gl.drawArrays(gl.POINTS, start, end - start));
  }

  drawSquares(view, box) {
    const ratio = this.dots.width / view.width, size = 3 * ratio;
    this.points.runs(box, (start, end) => {
      for (let i = start; i < end; i++) {
        const colour = this.colours[i], [r, g, b] = this.palette[colour % DIMMED];
        this.flat.fillStyle = `rgb(${r} ${g} ${b} / ${colour >= DIMMED ? 0.12 : 0.8})`;
        this.flat.fillRect(((this.points.x[i] - view.x) * view.scale + view.width / 2) * ratio - size / 2, ((this.points.y[i] - view.y) * view.scale + view.height / 2) * ratio - size / 2, size, size);
      }
    });
  }

  drawDensity(view, box) {
    const width = Math.ceil(view.width / BIN), height = Math.ceil(view.height / BIN);
    if (this.cloud.width !== width || this.cloud.height !== height || !this.bins) {
      Object.assign(this.cloud, { width, height });
      this.bins = new Float32Array(4 * width * height);
      this.image = this.dense.createImageData(width, height);
    }
    const { bins, image, points, colours } = this;
    bins.fill(0);
    const scale = view.scale / BIN, left = width / 2 - view.x * scale, top = height / 2 - view.y * scale;
    const tones = new Float32Array(3 * 256), weights = new Float32Array(256);
    this.palette.forEach((tone, i) => { tones.set(tone, 3 * i); tones.set(tone, 3 * (i + DIMMED)); });
    for (let i = 0; i < 256; i++) weights[i] = i >= DIMMED ? 0.05 : 1;
    let most = 0;
    points.runs(box, (start, end) => {
      for (let i = start; i < end; i++) {
        const px = (points.x[i] * scale + left) | 0, py = (points.y[i] * scale + top) | 0;
        if (px < 0 || py < 0 || px >= width || py >= height) continue;
        const at = 4 * (py * width + px), colour = colours[i], weight = weights[colour];
        bins[at] += tones[3 * colour] * weight;
        bins[at + 1] += tones[3 * colour + 1] * weight;
        bins[at + 2] += tones[3 * colour + 2] * weight;
        const sum = (bins[at + 3] += weight);
        if (sum > most) most = sum;
      }
    });
    const pixels = image.data, full = Math.log1p(most);
    for (let at = 0; at < bins.length; at += 4) {
      const sum = bins[at + 3];
      if (!sum) {
        pixels[at + 3] = 0;
        continue;
      }
      pixels[at] = bins[at] / sum;
      pixels[at + 1] = bins[at + 1] / sum;
      pixels[at + 2] = bins[at + 2] / sum;
      pixels[at + 3] = 55 + (200 * Math.log1p(sum)) / full;
    }
    this.dense.putImageData(image, 0, 0);
  }
}

/** Returns the part of the map that a view shows. */
export function boxOf({ x, y, scale, width, height }) {
  const [dx, dy] = [width / 2 / scale, height / 2 / scale];
  return { left: x - dx, right: x + dx, top: y - dy, bottom: y + dy };
}

/** Returns the view that shows all. */
export function wholeView(width, height) {
  return { x: SIDE / 2, y: SIDE / 2, scale: (Math.min(width, height) * 0.94) / SIDE, width, height };
}
